"""How the command line shows some fields of a recipe: what tyro needs to know about their types.

Only the command line needs tyro. Without tyro, everything else works, and these types are plain types.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tyro.conf import Suppress as Hidden

    Unprefixed: Any = None
else:
    try:
        from tyro.conf import Suppress as Hidden
        from tyro.conf import arg

        Unprefixed = arg(name="")
    except ImportError:
        Unprefixed = None

        class Hidden:
            """A field without a flag."""

            def __class_getitem__(cls, kind: Any) -> Any:
                return kind


def parsed_by(read: Callable[[list[str]], Any], write: Callable[[Any], str], kind: type, metavar: str) -> object:
    """Return the annotation of a type that is one word on the command line.

    Args:
        read: function from the words to the value; a ValueError is shown to the user.
        write: function from a value to its word.
        kind: the Python type of the values.
        metavar: the name of the type in the help.
    """
    try:
        from tyro.constructors import PrimitiveConstructorSpec
    except ImportError:
        return None
    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=metavar,
        instance_from_str=read,
        is_instance=lambda value: isinstance(value, kind),
        str_from_instance=lambda value: [write(value)],
    )
