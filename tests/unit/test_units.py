"""Bytes, durations and walltimes."""

import pytest

from scalable.units import (
    as_written,
    counted,
    format_amount,
    format_bytes,
    format_duration,
    like,
    parse_bytes,
    parse_duration,
    parse_walltime,
    seconds_of,
)


@pytest.mark.parametrize(("text", "count"), [
    ("20G", 20 * 10**9), ("20GB", 20 * 10**9), ("20Gi", 20 * 2**30), ("512MiB", 512 * 2**20),
    ("1.5 TB", 1_500_000_000_000), ("2k", 2000), (123, 123), ("0", 0),
])  # fmt: skip
def test_bytes_are_read_as_dask_and_kubernetes_read_them(text, count):
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "G", "20X", "-1G", "20 G B", "1e3", "nan"])
def test_invalid_amounts_of_memory_are_refused(text):
    with pytest.raises(ValueError, match="amount of memory"):
        parse_bytes(text)


@pytest.mark.parametrize(("text", "seconds"), [
    ("90s", 90), ("10m", 600), ("1h30m", 5400), ("2 days", 172800), ("500ms", 0.5), ("1.5h", 5400),
    ("01:00:30", 3630), ("1-00:00:00", 86400), (12.5, 12.5), ("12", 12),
])  # fmt: skip
def test_durations(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(("value", "seconds"), [("5 min", 300), ("1h", 3600), (2, 2), (None, None)])
def test_seconds_of_takes_numbers_and_durations(value, seconds):
    assert seconds_of("timeout", value) == seconds


@pytest.mark.parametrize("value", ["5 parsecs", "", True, [1]])
def test_seconds_of_names_the_argument_in_its_error(value):
    with pytest.raises(ValueError, match=r"^timeout=.* is not a duration: write, for example,"):
        seconds_of("timeout", value)


@pytest.mark.parametrize("text", ["", "h", "10 parsecs", "1h x", "ten minutes", "1e-9", "1h-2"])
def test_invalid_durations_are_refused(text):
    with pytest.raises(ValueError, match="duration|walltime"):
        parse_duration(text)


@pytest.mark.parametrize(("text", "seconds"), [
    ("30", 1800), (30, 1800), ("10:30", 630), ("04:00:00", 14400), ("1-12", 129600),
    ("1-12:30", 131400), ("2-00:00:01", 172801), ("4h", 14400),
])  # fmt: skip
def test_walltimes_are_read_as_sbatch_reads_them(text, seconds):
    assert parse_walltime(text) == seconds


@pytest.mark.parametrize("text", ["", "noon", "1:2:3:4", "1-", "-5"])
def test_invalid_walltimes_are_refused(text):
    with pytest.raises(ValueError, match="walltime"):
        parse_walltime(text)


def test_sizes_and_times_are_printed_for_people():
    assert [format_bytes(n) for n in (12, 1536, 3 * 2**30)] == ["12 B", "1.50 kiB", "3.00 GiB"]
    shown = [format_duration(s) for s in (0.00123, 0.345, 12.44, 185, 7620, 100_000)]
    assert shown == ["1.2 ms", "0.34 s", "12.4 s", "3 m 05 s", "2 h 07 m", "1 d 03 h"]


@pytest.mark.parametrize(("amount", "unit", "text"), [
    (12.5, "USD", "12.50"), (0.1, "USD", "0.10"), (0.0123, "USD", "0.012"),
    (0.000314, "EUR", "0.00031"), (0.0, "USD", "0.00"), (1250.4, "worker-seconds", "1250"),
    (0.42, "worker-seconds", "0.42"), (0.0, "worker-seconds", "0"),
])  # fmt: skip
def test_a_small_amount_does_not_look_like_nothing(amount, unit, text):
    assert format_amount(amount, unit) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 calls"), (1, "1 call"), (2, "2 calls")])
def test_one_is_no_plural(count, text):
    assert counted(count, "call") == text


@pytest.mark.parametrize("text", ["600M", "1.5Gi", "512Mi", "20G", "1.25T", "100K"])
def test_memory_is_shown_as_it_was_written(text):
    assert as_written(parse_bytes(text)) == text


@pytest.mark.parametrize(
    ("limit", "used", "shown"), [("200M", 789 * 10**6, "789M"), ("1Gi", 3 * 2**29, "1.5Gi")]
)
def test_memory_that_was_used_is_shown_in_the_unit_of_its_limit(limit, used, shown):
    assert like(parse_bytes(limit), used) == shown
