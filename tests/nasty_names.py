"""Names and texts that no surface may execute, be broken by, or pass on as they are."""

#: Word for the id of a test -> text.
NASTY = {
    "html": "<img src=x onerror=alert(1)><script>alert(2)</script></style></title>",
    "ansi": "\x1b]0;title\x07\x1b[31mred\x1b[2J\x9b1;1H",
    "clipboard": "\x1b]52;c;cm0gLXJmIC8=\x1b\\",
    "long": "x" * 10_000,
    "right-to-left": "\u202egnp.exe\u2066\u200f שלום عالم",
    "lines": "one\r\ntwo\rthree\x00\x08\x7f",
    "markup": "[bold red]x[/bold red][link=http://elsewhere]y[/link]",
    "address": "a/b#c?d=%41&e=\"'`",
    "template": "{{ 7 * 7 }}{% raw %}${alert(4)}%s%(x)s{0}",
    "combined": "e" + "\u0301" * 300,
}
#: Characters that never reach a terminal or a log.
HARMFUL = ({chr(n) for n in (*range(32), *range(0x7F, 0xA0))} - {"\n", "\t"}) | set(
    "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
)
#: Longest line that a surface of text may have.
LONGEST_LINE = 3_000


def check_harmless(text, longest=LONGEST_LINE):
    """Check a text that goes to a terminal or to a log."""
    assert not HARMFUL & set(text), sorted(HARMFUL & set(text))
    line = max(text.split("\n"), key=len)
    assert len(line) <= longest, (len(line), line[:300])
