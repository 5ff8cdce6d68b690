"""Hostile images, folders and tables: each ends with one line or is skipped and counted; nothing hangs, nothing outside
is read."""

import faulthandler
import io
import json
import os
import socket
import struct
import zlib

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from fullrank.images import parquet

GOOD = 12


@pytest.fixture(autouse=True)
def _no_hang():
    """End the process with a traceback if a case hangs."""
    faulthandler.dump_traceback_later(120, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def _small_bounds(monkeypatch, tmp_path):
    """Bounds that tiny bombs exceed."""
    monkeypatch.setattr(parquet, "MAX_BYTES_IN_MEMORY", 2**22)
    monkeypatch.setattr(parquet, "BATCH_BYTES", 2**21)
    monkeypatch.setattr(parquet, "CACHE", tmp_path / "cache")


def picture(k=0, format="PNG", mode="RGB", size=(12, 10), **options):
    file = io.BytesIO()
    colour = (10 * k % 256, 100, 200, 40)[: len(mode)] if mode not in ("P", "1", "I;16", "F") else k
    Image.new(mode, size, colour).save(file, format, **options)
    return file.getvalue()


def chunk(kind, data):
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_bomb(width, height):
    """A PNG whose header promises more pixels than the file holds; a real one of 10⁹ pixels has 1 MB."""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")


def npy(shape, content=b"", descr="|u1"):
    header = repr({"descr": descr, "fortran_order": False, "shape": shape}).encode()
    header += b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content


def pickled():
    file = io.BytesIO()
    np.save(file, np.array([{"a": 1}], dtype=object), allow_pickle=True)
    return file.getvalue()


def animation(format):
    file = io.BytesIO()
    frames = [Image.new("RGB", (12, 10), (k, 0, 0)) for k in range(0, 250, 5)]
    frames[0].save(file, format, save_all=True, append_images=frames[1:])
    return file.getvalue()


def five_bands():
    bands = [
        (256, 3, 1, 4),
        (257, 3, 1, 4),
        (258, 3, 5, 0),
        (259, 3, 1, 1),
        (262, 3, 1, 2),
        (273, 4, 1, 0),
        (277, 3, 1, 5),
    ]
    bands += [(278, 3, 1, 4), (279, 4, 1, 80), (284, 3, 1, 1), (338, 3, 2, 0)]
    end = 8 + 2 + 12 * len(bands) + 4
    entries = b"".join(
        struct.pack("<HHII", tag, kind, n, {258: end, 273: end + 10}.get(tag, value)) for tag, kind, n, value in bands
    )
    return (
        b"II*\0"
        + struct.pack("<I", 8)
        + struct.pack("<H", len(bands))
        + entries
        + bytes(4)
        + struct.pack("<5H", *[8] * 5)
        + bytes(80)
    )


def exif(value):
    return b"Exif\0\0" + b"II*\0" + struct.pack("<IH", 8, 1) + struct.pack("<HHII", 274, 3, 1, value) + bytes(4)


FILES = {
    # name → (suffix, content, whether the file is an image after all)
    "empty": (".png", b"", False),
    "one byte": (".jpg", b"\xff", False),
    "text": (".png", b"not an image", False),
    "svg": (
        ".png",
        b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'><script>alert(1)</script></svg>",
        False,
    ),
    "html": (".jpg", b"<!DOCTYPE html><html><script>alert(1)</script></html>", False),
    "postscript that Pillow would give to Ghostscript": (
        ".png",
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EOF\n",
        False,
    ),
    "truncated png": (".png", picture()[:44], False),
    "truncated jpeg": (".jpg", picture(format="JPEG", size=(64, 64))[:300], False),
    "truncated gif": (".gif", picture(format="GIF")[:20], False),
    "truncated webp": (".webp", picture(format="WEBP")[:25], False),
    "truncated tiff": (".tif", picture(format="TIFF")[:40], False),
    "truncated bmp": (".bmp", picture(format="BMP")[:60], False),
    "garbage after a jpeg header": (".jpg", picture(format="JPEG")[:150] + bytes(range(256)) * 8, None),
    "png with a wrong checksum": (".png", picture()[:45] + b"XXXX" + picture()[49:], False),
    "png bomb": (".png", png_bomb(60_000, 60_000), False),
    "png bomb of one row": (".png", png_bomb(2**31 - 1, 1), False),
    "image of 1 by 60000 pixels": (".png", picture(size=(1, 60_000)), True),
    "image of one pixel": (".png", picture(size=(1, 1)), True),
    "array that promises 10¹² values": (".npy", npy((10**6, 10**6, 3), b"abc"), False),
    "array with negative shape": (".npy", npy((-1, 4, 3), b"abc"), False),
    "array of pickled objects": (".npy", pickled(), False),
    "array with a header that is no literal": (".npy", b"\x93NUMPY\x01\x00\x10\x00__import__('os')\n", False),
    "animated gif": (".gif", animation("GIF"), True),
    "animated webp": (".webp", animation("WEBP"), True),
    "cmyk": (".jpg", picture(format="JPEG", mode="CMYK"), True),
    "floating point": (".tif", picture(format="TIFF", mode="F"), False),
    "five bands": (".tif", five_bands(), False),
    "exif with orientation 65000": (".jpg", picture(format="JPEG", exif=exif(65_000)), True),
    "exif of garbage": (".jpg", picture(format="JPEG", exif=b"Exif\0\0" + bytes(range(256))), True),
    "a name with an escape sequence": ("\x1b]0;gone\x07\x1b[2J\u202e.png", b"", False),
    "a name that is not UTF-8": ("\udcff\udcfe.png", picture(), True),
}


def fill(folder, n=GOOD):
    folder.mkdir(parents=True, exist_ok=True)
    for k in range(n):
        (folder / f"good {k}.png").write_bytes(picture(k))
    return folder


@pytest.fixture
def embed(attack, tmp_path):
    """Embed a source; return the status, the message and the names of the embedded images."""

    def run(source, *flags):
        out = tmp_path / "out.parquet"
        flags = (*flags, "--max-error-fraction", "0.5", "--accelerator", "cpu", "--out", out)
        status, _, err = attack("embed", "timm-untrained:test_resnet", "--data", source, *flags)
        assert not any(ord(character) < 32 and character != "\n" for character in err), err
        return status, err, pq.read_table(out)["name"].to_pylist() if status == 0 else []

    return run


@pytest.mark.parametrize("name", FILES)
def test_a_hostile_file_is_read_or_skipped(name, embed, tmp_path):
    suffix, content, is_image = FILES[name]
    folder = fill(tmp_path / "photos")
    (folder / f"bad{suffix}").write_bytes(content)
    status, err, names = embed(folder)
    assert status == 0, err
    if is_image is not None:
        assert len(names) == GOOD + is_image, err
    assert ("skipped bad" in err) == (len(names) == GOOD), err


def loops(folder, secret):
    (folder / "self.png").symlink_to(folder / "self.png")
    (folder / "a.png").symlink_to(folder / "b.png")
    (folder / "b.png").symlink_to(folder / "a.png")
    (folder / "up").symlink_to("..", target_is_directory=True)
    return 3


def web(folder, secret):
    for k in range(24):
        (folder / f"{k}").mkdir()
    for k in range(24):
        for name, step in (("x", 1), ("y", 7)):
            (folder / f"{k}" / name).symlink_to(folder / f"{(k + step) % 24}")
    return 0


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
    (folder / "zero.png").symlink_to("/dev/zero")
    (folder / "terminal.png").symlink_to("/dev/tty")
    (folder / "proc").symlink_to("/proc/self")
    (folder / "secret.png").symlink_to(secret)
    (folder / "folder").symlink_to(secret.parent, target_is_directory=True)
    return 0


def names_with_controls(folder, secret):
    for name in ("\x1b[31mred", "new\nline", "bell\x07"):
        fill(folder / name, 1)
        (folder / name / "bad\r.png").write_bytes(b"")
    return 3


def deep(folder, secret):
    path = folder
    for k in range(60):
        path = path / f"{k}"
    fill(path, 1)
    return 0


@pytest.mark.parametrize(
    "build", [loops, web, special_files, links_out, names_with_controls, deep], ids=lambda build: build.__name__
)
def test_a_hostile_folder_is_read_without_what_is_hostile(build, embed, tmp_path):
    secret = fill(tmp_path / "private", 1) / "good 0.png"
    folder = fill(tmp_path / "photos")
    skipped = build(folder, secret)
    status, err, names = embed(folder)
    assert status == 0, err
    assert err.count("skipped ") == skipped, err
    assert len(names) in (GOOD, GOOD + 1, GOOD + 3)
    assert not any("secret" in name or name.startswith("folder/") for name in names)


def table(folder, metadata=None, **columns):
    folder.mkdir(parents=True, exist_ok=True)
    rows = pa.table(columns)
    pq.write_table(
        rows.replace_schema_metadata(metadata) if metadata else rows, folder / "x.parquet", compression="zstd"
    )
    return folder / "x.parquet"


def cells(n=GOOD):
    return [{"bytes": picture(k), "path": None} for k in range(n)]


def rows_that_name_files(folder, secret):
    os.mkfifo(folder / "fifo.png")
    paths = [str(secret), "../private/good 0.png", "/dev/zero", "fifo.png", "a\0b"]
    return table(folder, image=[*cells(), *({"bytes": None, "path": path} for path in paths)])


def bomb(folder, secret):
    return table(folder, image=[{"bytes": bytes(2**20), "path": None}] * 64)


def nested(folder, secret):
    return table(folder, image=[[{"bytes": picture(), "path": {"deep": "x"}}]] * GOOD)


def wrong_types(folder, secret):
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=["a"])}).to_dict()
    return table(
        folder,
        {"huggingface": json.dumps({"info": {"features": features}})},
        image=list(range(GOOD)),
        label=["x"] * GOOD,
    )


def bad_metadata(folder, secret):
    return table(folder, {"huggingface": '{"info": {"features": 3}}'}, image=cells())


def huge_labels(folder, secret):
    return table(folder, image=cells(), label=pa.array([2**64 - 1 - k for k in range(GOOD)], pa.uint64()))


def truncated(folder, secret):
    path = table(folder, image=cells())
    path.write_bytes(path.read_bytes()[:-100])
    return path


def fifo_table(folder, secret):
    os.mkfifo(folder / "x.parquet")
    return folder


TABLES = {
    rows_that_name_files: 0,
    bomb: 2,
    nested: 2,
    wrong_types: 2,
    bad_metadata: 2,
    huge_labels: 0,
    truncated: 2,
    fifo_table: 2,
}


@pytest.mark.parametrize("build", TABLES, ids=lambda build: build.__name__)
def test_a_hostile_table_is_refused_or_read_without_what_is_hostile(build, embed, tmp_path):
    secret = fill(tmp_path / "private", 1) / "good 0.png"
    (tmp_path / "tables").mkdir()
    status, err, names = embed(build(tmp_path / "tables", secret))
    assert status == TABLES[build], err
    assert len(names) == (GOOD if status == 0 else 0), err
