"""`docker run --init`: the first process of a container, which passes signals on to the command."""

import contextlib
import os
import signal
import sys

PASSED_ON = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def main():
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    child = os.fork()
    if child == 0:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
        try:
            os.execvp(sys.argv[1], sys.argv[1:])
        except OSError as error:
            print(f"[FATAL tini] exec {sys.argv[1]} failed: {error.strerror}", file=sys.stderr)
            os._exit(127)

    def pass_on(number, _frame):
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(128 - code if code < 0 else code)


if __name__ == "__main__":
    main()
