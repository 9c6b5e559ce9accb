"""Price tables, choice of machines, budgets, and the cost so far."""
