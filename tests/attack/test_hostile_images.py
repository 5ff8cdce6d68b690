"""Hostile images, folders and tables: each is skipped and counted, or refused in one line; nothing hangs, nothing
outside is read."""

import faulthandler
import io
import json
import os
import socket
import struct
import zlib

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from fullrank.errors import UserError
from fullrank.images import DecodeErrors, Decoding, Preprocess, iterate_batches, open_images, parquet

GOOD = 12


@pytest.fixture(autouse=True)
def _bounds(monkeypatch, tmp_path):
    """Bounds that tiny bombs exceed; a case that hangs ends the process with a traceback."""
    monkeypatch.setattr(parquet, "MAX_BYTES_IN_MEMORY", 2**22)
    monkeypatch.setattr(parquet, "BATCH_BYTES", 2**21)
    monkeypatch.setattr(parquet, "CACHE", tmp_path / "cache")
    faulthandler.dump_traceback_later(120, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def picture(k=0, format="PNG", mode="RGB", size=(12, 10), **options):
    file = io.BytesIO()
    Image.new(mode, size, 0 if mode == "F" else (10 * k % 256, 100, 200, 40)[: len(mode)]).save(file, format, **options)
    return file.getvalue()


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_bomb(width, height):
    """A PNG whose header promises more pixels than the file holds; a real one of 10⁹ pixels has 1 MB."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


def npy(shape, content=b""):
    header = repr({"descr": "|u1", "fortran_order": False, "shape": shape}).encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content


def pickled():
    file = io.BytesIO()
    np.save(file, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    return file.getvalue()


def exif(value):
    return b"Exif\0\0" + b"II*\0" + struct.pack("<IH", 8, 1) + struct.pack("<HHII", 274, 3, 1, value) + bytes(4)


SKIPPED = {
    "empty.png": b"",
    "one byte.jpg": b"\xff",
    "svg.png": b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'><script>alert(1)</script></svg>",
    "postscript that Pillow would give to Ghostscript.png": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EOF\n",
    "truncated.png": picture()[:44],
    "truncated.jpg": picture(format="JPEG", size=(64, 64))[:300],
    "truncated.gif": picture(format="GIF")[:20],
    "truncated.webp": picture(format="WEBP")[:25],
    "truncated.tif": picture(format="TIFF")[:40],
    "wrong checksum.png": picture()[:45] + b"XXXX" + picture()[49:],
    "bomb.png": png_bomb(60_000, 60_000),
    "bomb of one row.png": png_bomb(2**31 - 1, 1),
    "10¹² values.npy": npy((10**6, 10**6, 3), b"abc"),
    "negative shape.npy": npy((-1, 4, 3), b"abc"),
    "pickled objects.npy": pickled(),
    "header that is no literal.npy": b"\x93NUMPY\x01\x00\x10\x00__import__('os')\n",
    "floating point.tif": picture(format="TIFF", mode="F"),
    "\x1b]0;gone\x07\x1b[2J\u202e.png": b"",
}
READ = {
    "1 by 60000.png": picture(size=(1, 60_000)),
    "cmyk.jpg": picture(format="JPEG", mode="CMYK"),
    "exif with orientation 65000.jpg": picture(format="JPEG", exif=exif(65_000)),
    "exif of garbage.jpg": picture(format="JPEG", exif=b"Exif\0\0" + bytes(range(256))),
    "\udcff\udcfe.png": picture(),
}


def fill(folder, n=GOOD):
    folder.mkdir(parents=True, exist_ok=True)
    for k in range(n):
        (folder / f"good {k}.png").write_bytes(picture(k))
    return folder


def read(source):
    """Return the names of the images that were read, and of those that were skipped."""
    errors, names = DecodeErrors(max_error_fraction=1.0), []
    for images in open_images(source).values():
        preprocess, decoding = Preprocess(3, 8, (0.5,) * 3, (0.5,) * 3), Decoding(errors=errors)
        for batch in iterate_batches(images, preprocess, decoding=decoding):
            names += batch.names
    return names, set(errors.reasons)


def test_hostile_files_are_read_or_skipped(tmp_path):
    folder = fill(tmp_path / "photos")
    for name, content in (SKIPPED | READ).items():
        (folder / name).write_bytes(content)
    names, skipped = read(folder)
    assert skipped == set(SKIPPED)
    assert len(names) == GOOD + len(READ)


def loops(folder, secret):
    (folder / "self.png").symlink_to(folder / "self.png")
    (folder / "up").symlink_to("..", target_is_directory=True)
    for k in range(24):
        (folder / f"{k}").mkdir()
        for name, step in (("x", 1), ("y", 7)):
            (folder / f"{k}" / name).symlink_to(folder / f"{(k + step) % 24}")
    return 1


def special_files(folder, secret):
    os.mkfifo(folder / "fifo.png")
    with socket.socket(socket.AF_UNIX) as server:
        here = os.getcwd()
        os.chdir(folder)  # the path of a socket has at most 108 characters
        server.bind("socket.png")
        os.chdir(here)
    (folder / "link to fifo.png").symlink_to(folder / "fifo.png")
    return 3


def links_out(folder, secret):
    for name, target in (("zero.png", "/dev/zero"), ("secret.png", secret), ("proc", "/proc/self")):
        (folder / name).symlink_to(target)
    (folder / "folder").symlink_to(secret.parent, target_is_directory=True)
    return 0


@pytest.mark.parametrize("build", [loops, special_files, links_out], ids=lambda build: build.__name__)
def test_a_hostile_folder_is_read_without_what_is_hostile(build, tmp_path):
    secret = fill(tmp_path / "private", 1) / "good 0.png"
    count = build(fill(tmp_path / "photos"), secret)
    names, skipped = read(tmp_path / "photos")
    assert len(names) == GOOD
    assert len(skipped) == count


def table(folder, metadata=None, **columns):
    pq.write_table(pa.table(columns).replace_schema_metadata(metadata), folder / "x.parquet", compression="zstd")


def cells(n=GOOD):
    return [{"bytes": picture(k), "path": None} for k in range(n)]


def rows_that_name_files(folder, secret):
    os.mkfifo(folder / "fifo.png")
    paths = [str(secret), "../private/good 0.png", "/dev/zero", "fifo.png", "a\0b"]
    table(folder, image=[*cells(), *({"bytes": None, "path": path} for path in paths)])


def bomb(folder, secret):
    table(folder, image=[{"bytes": bytes(2**20), "path": None}] * 64)


def nested(folder, secret):
    table(folder, image=[[{"bytes": picture(), "path": {"deep": "x"}}]] * GOOD)


def wrong_types(folder, secret):
    features = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": ["a"]}}
    table(folder, {"huggingface": json.dumps({"info": {"features": features}})}, image=list(range(9)), label=["x"] * 9)


def bad_metadata(folder, secret):
    table(folder, {"huggingface": '{"info": {"features": 3}}'}, image=cells())


def truncated(folder, secret):
    table(folder, image=cells())
    (folder / "x.parquet").write_bytes((folder / "x.parquet").read_bytes()[:-100])


def fifo_table(folder, secret):
    os.mkfifo(folder / "x.parquet")


def test_a_table_that_names_other_files_is_read_without_these(tmp_path):
    (tmp_path / "tables").mkdir()
    rows_that_name_files(tmp_path / "tables", fill(tmp_path / "private", 1) / "good 0.png")
    assert len(read(tmp_path / "tables" / "x.parquet")[0]) == GOOD


REFUSED = [bomb, nested, wrong_types, bad_metadata, truncated, fifo_table]


@pytest.mark.parametrize("build", REFUSED, ids=lambda build: build.__name__)
def test_a_hostile_table_is_refused_in_one_line(build, tmp_path):
    build(tmp_path, None)
    with pytest.raises(UserError) as caught:
        read(tmp_path)
    assert "\n" not in str(caught.value)
