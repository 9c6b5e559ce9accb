"""The worker manager: it starts and stops units until the desired units exist."""
