"""Content of numpy, pandas and xarray objects, without importing these libraries.

Tables are written column by column, so the memory layout (blocks, chunks, views) does not affect
the digest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from scalable.cache.errors import UnstableValueError

#: Entropy of more bits means an unseeded generator: numpy then draws 128 bits from the system.
_SEED_BITS = 96


class Writer(Protocol):
    """Interface of :class:`scalable.cache.content.Contents` for the array writers."""

    def write(self, value: Any) -> None:
        """Write a value."""

    def raw(self, tag: bytes, data: Any) -> None:
        """Write bytes."""

    def text(self, tag: bytes, text: str) -> None:
        """Write a string."""

    def all(self, tag: bytes, values: Any) -> None:
        """Write values in their order."""


def array_writer(value: Any) -> Callable[[Any, Any], None] | None:
    """Return the function that writes an array or a table, or None for other objects."""
    kind = type(value)
    library = kind.__module__.partition(".")[0]
    if library not in _LIBRARIES:
        return None
    if library == "pandas" and any(base.__qualname__ == "Index" for base in kind.__mro__):
        return _write_index
    if library == "numpy" and any(base.__module__ == "numpy" for base in kind.__mro__[1:]):
        names = [base.__qualname__ for base in kind.__mro__ if base.__module__ == "numpy"]
        if names[-1] in ("generic", "dtype"):
            return _write_scalar if names[-1] == "generic" else _write_dtype
    return _WRITERS.get((library, kind.__qualname__))


def not_pickled(value: Any) -> Any:
    """Return the state of an array subclass that its pickle omits, or None."""
    kinds = [kind for kind in type(value).__mro__ if kind.__module__.partition(".")[0] == "numpy"]
    if not any(kind.__qualname__ == "ndarray" for kind in kinds):
        return None
    if len(kinds) > 1:  # a masked array
        return getattr(value, "hardmask", None)
    return dict(vars(value)) if hasattr(value, "__dict__") else None


def _write_ndarray(contents: Writer, array: Any) -> None:
    dtype = array.dtype
    if dtype.hasobject:
        contents.all(b"objects", (array.shape, dtype, array.ravel().tolist()))
        return
    fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    contents.text(b"ndarray", f"{array.shape} {'F' if fortran else 'C'}")
    contents.write(dtype)
    # A transposed array in Fortran order is in C order, so that neither order is copied.
    compact = array.T if fortran else array
    flat = (compact if compact.flags.c_contiguous else compact.copy("C")).reshape(-1)
    contents.raw(b"data", flat.view("u1") if flat.size and dtype.itemsize else b"")


def _write_dtype(contents: Writer, dtype: Any) -> None:
    contents.all(b"dtype", (dtype.str, dtype.metadata and dict(dtype.metadata)))
    if dtype.fields:
        fields = [(name, *dtype.fields[name]) for name in dtype.names]
        contents.all(b"fields", (dtype.itemsize, dtype.isalignedstruct, fields))
    elif dtype.subdtype:
        contents.all(b"sub", dtype.subdtype)


def _write_scalar(contents: Writer, scalar: Any) -> None:
    contents.write(scalar.dtype)
    if scalar.dtype.hasobject or scalar.dtype.fields:
        contents.write(scalar.item())
    else:
        contents.raw(b"scalar", scalar.tobytes())


def _write_generator(contents: Writer, generator: Any) -> None:
    # A RandomState exposes its bit generator in no other way.
    bits = getattr(generator, "bit_generator", None) or generator._bit_generator  # noqa: SLF001
    entropy = getattr(getattr(bits, "_seed_seq", None), "entropy", None)
    if isinstance(entropy, int) and entropy >> _SEED_BITS:
        raise UnstableValueError(
            generator, "was not seeded; use a seed below 2**96, or create it in the task"
        )
    contents.all(b"generator", (type(bits).__name__, bits.state))


def _write_frame(contents: Writer, frame: Any) -> None:
    flags = frame.flags.allows_duplicate_labels
    contents.all(b"frame", (frame.columns, frame.index, frame.attrs, flags))
    for number in range(frame.shape[1]):
        _write_column(contents, frame.iloc[:, number].array)


def _write_series(contents: Writer, series: Any) -> None:
    flags = series.flags.allows_duplicate_labels
    contents.all(b"series", (series.name, series.index, series.attrs, flags))
    _write_column(contents, series.array)


def _write_index(contents: Writer, index: Any) -> None:
    frequency = getattr(index, "freqstr", None)
    contents.all(b"index", (type(index).__qualname__, list(index.names), frequency))
    if type(index).__qualname__ == "RangeIndex":
        contents.all(b"range", (index.start, index.stop, index.step))
    elif index.nlevels > 1:
        contents.all(b"levels", [index.get_level_values(n) for n in range(index.nlevels)])
    else:
        _write_column(contents, index.array)


def _write_column(contents: Writer, array: Any) -> None:
    """Write a pandas array by its visible values, ignoring data behind missing ones."""
    kind, dtype = type(array).__qualname__, str(array.dtype)
    contents.text(b"column", f"{kind} {dtype}")
    if kind == "Categorical":
        contents.all(b"categories", (array.categories, array.ordered, array.codes))
    elif kind in ("NumpyExtensionArray", "PandasArray"):
        contents.write(array.to_numpy())
    elif kind in ("DatetimeArray", "TimedeltaArray", "PeriodArray"):
        contents.write(array.asi8)
    else:
        missing = array.isna()
        contents.write(missing)
        contents.write(array[~missing].to_numpy(dtype=object).tolist())


def _write_dataset(contents: Writer, dataset: Any) -> None:
    names = sorted(dataset.variables, key=repr)
    contents.all(b"dataset", (dict(dataset.attrs), sorted(dataset.coords, key=repr), names))
    for name in names:
        _write_variable(contents, dataset.variables[name])


def _write_data_array(contents: Writer, array: Any) -> None:
    contents.all(b"data_array", (array.name, sorted(array.coords, key=repr)))
    _write_variable(contents, array.variable)
    for name in sorted(array.coords, key=repr):
        _write_variable(contents, array.coords[name].variable)


def _write_variable(contents: Writer, variable: Any) -> None:
    if variable.chunks is not None:
        raise UnstableValueError(variable, "is lazy; call .compute() first, or pass its path")
    contents.all(
        b"variable",
        (list(variable.dims), dict(variable.attrs), dict(variable.encoding), variable.values),
    )


#: Writers of immutable values.
IMMUTABLE_WRITERS = frozenset({_write_dtype, _write_scalar})
_LIBRARIES = frozenset({"numpy", "pandas", "xarray"})
_WRITERS: dict[tuple[str, str], Callable[[Any, Any], None]] = {
    ("numpy", "ndarray"): _write_ndarray,
    ("numpy", "Generator"): _write_generator,
    ("numpy", "RandomState"): _write_generator,
    ("pandas", "DataFrame"): _write_frame,
    ("pandas", "Series"): _write_series,
    ("pandas", "Categorical"): _write_column,
    ("xarray", "Dataset"): _write_dataset,
    ("xarray", "DataArray"): _write_data_array,
    ("xarray", "Variable"): _write_variable,
    ("xarray", "IndexVariable"): _write_variable,
}
