"""Numbers as text."""

from math import isfinite, isinf, isnan

NOT_RECORDED = "not recorded"


def format_count(n: int | float) -> str:
    """Return an integer with thin spaces between its thousands.

    >>> format_count(1234567).split("\N{NARROW NO-BREAK SPACE}")
    ['1', '234', '567']
    """
    return f"{n:,.0f}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def format_percent(fraction: int | float) -> str:
    """Return a fraction in percent.

    >>> format_percent(0.9123).split()
    ['91.2', '%']
    """
    return f"{100 * fraction:.1f}\N{NO-BREAK SPACE}%"


def format_duration(seconds: int | float | None) -> str:
    """Return a duration in its two largest units.

    >>> format_duration(7384), format_duration(42.3), format_duration(100_000), format_duration(None)
    ('2 h 3 min', '42 s', '1 d 3 h', 'not recorded')
    """
    if not isinstance(seconds, int | float) or not isfinite(seconds):
        return NOT_RECORDED
    days, hours, minutes, rest = (
        int(seconds // 86400),
        int(seconds // 3600 % 24),
        int(seconds // 60 % 60),
        int(seconds % 60),
    )
    parts = [
        f"{value} {unit}" for value, unit in zip((days, hours, minutes, rest), ("d", "h", "min", "s"), strict=True)
    ]
    first = next((k for k, value in enumerate((days, hours, minutes, rest)) if value), 3)
    return " ".join(parts[first : first + 2])


def number(value: float) -> str:
    """Return a number with three or four digits.

    >>> number(0.98765), number(45.25), number(3.0), number(float("inf")), number(2.5e9)
    ('0.988', '45.2', '3', '∞', '2.5e+09')
    """
    if isinf(value) or isnan(value):
        return "∞" if isinf(value) else "–"
    if 1000 <= abs(value) < 1e6:
        return format_count(value)
    return f"{value:.3g}"
