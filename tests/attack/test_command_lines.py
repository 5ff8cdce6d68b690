"""Bad command lines: exit status 2, one line that names what was wrong, nothing written. Help: status 0 at each
level."""

import os
import shlex

import pytest

# The command lines are those of a shell; FOLDER, RUN, PHOTOS and FILE are things that exist. No line may start to
# train, compute or write.
PRETRAIN = r"""
digit
digts --epochs 3
'' --epochs 3
digits ''
digits --out ''
digits --out=
digits --data ''
digits --split ''
digits --seed=
digits --objective=
digits --objective ''
digits --backbone.name ''
digits --machine.accelerator ''
digits again
digits cifar10
digits -1
digits ---
digits -x
digits --=3
digits -epochs 3
digits --epochs
digits --epochs --seed 3
digits --epochs three
digits --epochs 3.5
digits --epochs 1e3
digits --epochs -1
digits --epochs 0
digits --epochs 0x10
digits --epochs 1000000000000
digits --epochs 99999999999999999999999999999999999999999999999999
digits --epochs nan
digits --epochs True
digits --epochs 3 4
digits --epochs '3; rm -rf /'
digits --epochs '$(reboot)'
digits --epochs ３,０
digits --epoch 3
digits --epoches 3
digits --Epochs 3
digits --EPOCHS=3
digits --epochs.x 3
digits --batch 64
digits --bs 64
digits --batch_size -8
digits --batch_size 0
digits --batch_size 1
digits --batch_size 5000
digits --batch_size 2147483648
digits --batch_size 1e400
digits --batch_size 64 --batch_size many
digits --batch_size 100 --devices 3
digits --backbone resnet50
digits --backbone=resnet50
digits --backbone.name resnet81
digits --backbone.name resnet18 --backbone.arguments [1,2]
digits --backbone.name ../../etc/passwd
digits --backbone.name vit_tiny_patch16_224
digits --backbone.name resnet18d --backbone.stem small
digits --backbone.name resnet18.a1_in1k.b
digits --backbone.stem huge
digits --backbone.arguments {
digits --backbone.arguments {}x
digits --backbone.arguments '{"channels": "wide"}'
digits --backbone.arguments '{"checkpoint_path": "FILE"}'
digits --backbone.arguments '{"pretrained": true}'
digits --backbone.arguments null
digits --backbone.arguments 3
digits --backbone.arguments
digits --backbone.last-residual maybe
digits --init imagenet
digits --pretrained
digits --weights FILE
digits --finetune RUN
digits --lr 0.1
digits --learning_rate 0.1
digits --wd 0.1
digits --optimizer adamw
digits --optimizer.name adam
digits --optimizer.lr fast
digits --optimizer.lr nan
digits --optimizer.lr inf
digits --optimizer.lr -1
digits --optimizer.lr 1e308
digits --optimizer.lr 1,5
digits --optimizer.lrr 3
digits --optimizer.momentum 1
digits --optimizer.momentum -0.5
digits --optimizer.weight_decay nan
digits --schedule cosine
digits --schedule.name linear
digits --schedule.warmup -1
digits --schedule.warmup 1e9
digits --schedule.min_lr_ratio 2
digits --schedule.milestones x
digits --warmup 5
digits --size 16
digits --views.0.size 0
digits --views.0.size -4
digits --views.0.size 1e9
digits --views.0.size 4.5
digits --views.0.size 100000000
digits --views.0.count 0
digits --views.0.count 1
digits --views.0.count 1000000
digits --views.7.size 16
digits --views.-1.size 16
digits --views..size 16
digits --views.0 16
digits --views 16
digits --views.0.crop.scale 0.2
digits --views.0.crop.scale 1 0.2
digits --views.0.crop.scale -1 1
digits --views.0.crop.scale 0.2 1 2
digits --views.0.flip 2
digits --views.0.jitter.hue 0.9
digits --views.0.noise.std inf
digits --views.0.noise.std -1
digits --views.0.solarize.threshold 7
digits --views.0.crop.crop.crop.scale 1 1
digits --objective
digits --objective vicregg
digits --objective FOLDER
digits --objective no_module:loss
digits --objective os:
digits --objective :loss
digits --objective os:no_such_function
digits --objective os:name
digits --objectiv vicreg
digits --loss vicreg
digits --objective vicreg --views.0.count 3
digits --hyper.covariance 4
digits --hyper.invariance much
digits --hyper.invariance nan
digits --hyper 3
digits --hyper.log maybe
digits --method vicreg
digits --method-builder nothing
digits --method-builder
digits --method-builder no_module:build
digits --method.queue 3
digits --objective moco --method.queue 0
digits --objective byol --method.momentum 2 2
digits --projector 64
digits --projector.widths 0
digits --projector.widths -3
digits --projector.widths 10000000000
digits --projector.widths a b
digits --projector.kind mlpp
digits --projector.kind dropout --projector.d0 100000
digits --custom_transforms nothing
digits --custom_transforms no_module:function
digits --devices x
digits --devices 0
digits --devices -2
digits --devices 1000000000
digits --devices 1.5
digits --devices
digits --machine.devices 0
digits --machine.accelerator tpu9
digits --machine.precision 8-bit
digits --machine.micro_batch -1
digits --gpus 2
digits --workers 4
digits --data nowhere
digits --data hff:cifar
digits --data FOLDER
digits --data FILE
digits --data parquet:FILE
digits --data folder:nowhere
digits --data parquet:nowhere
digits --data hf:
digits --data :
digits --data http://example.com/cats.zip
digits --data.source ''
digits --data.train trian
digits --split trian
digits --split
digits --data.channels 0
digits --data.channels -3
digits --data.workers 10000
digits --data.workers x
digits --data.storage tape
digits --data.storage streaming
digits --data.size -1
digits --data.max_error_fraction 3
digits --data.mean 0.5 0.5
digits --data.std 0
digits --seed -1
digits --seed 18446744073709551616
digits --seed x
digits --checkpoints 0
digits --checkpoints 1000000000
digits --log_every 0
digits --log_every x
digits --spectrum.every -1
digits --spectrum.samples -1
digits --out FOLDER
digits --out FOLDER --overwrite
digits --out FILE
digits --out FILE/run
digits --out RUN
digits --output elsewhere
digits --overwrite yes
digits --wandb maybe
digits --preview --out FILE
digits --preview --out views.jpg
digits --preview --out FOLDER
digits --trust me
digits --resume
digits --resume nowhere
--resume
--resume nowhere
--resume FOLDER
--resume FILE
--resume RUN --seed 5
--resume RUN cifar10
--resume RUN --devices x
--resume RUN digits --out other
--resume=
--epochs 3
-e 3
--
RUN
FOLDER
FILE
nowhere.json
broken.json
list.json
unknown.json
typed.json
folder.json
photos
photos --data nowhere
PHOTOS --split nothing
PHOTOS --backbone.name resnet81
PHOTOS --views.0.size x
folder:nowhere
hff:cats
~nobody/photos
/dev/null
"""

OTHERS = r"""
evaluate
evaluate ''
evaluate nowhere
evaluate RUN RUN
evaluate FOLDER
evaluate FILE
evaluate RUN@
evaluate RUN@x
evaluate RUN@999999
evaluate timm:
evaluate timm:no_such_model
evaluate timm:resnet18
evaluate file:
evaluate file:FILE
evaluate file:nowhere
evaluate RUN --probes
evaluate RUN --probes knnn
evaluate RUN --data nowhere
evaluate RUN --data ''
evaluate RUN --train nothing
evaluate RUN --dimensions foo
evaluate RUN --dimensions ''
evaluate RUN --dimensions 3:1x
evaluate RUN --seed x
evaluate RUN --out FILE
evaluate RUN --out ''
evaluate RUN --out FOLDER
evaluate RUN --accelerator tpu
evaluate RUN --workers x
evaluate RUN --max_error_fraction lots
evaluate RUN --probe knn
spectrum
spectrum nowhere
spectrum '' --out a.npz
spectrum RUN --against
spectrum RUN --against nowhere
spectrum RUN --against ''
spectrum RUN --out a.csv
spectrum RUN --out precious.npz
spectrum RUN --out ''
spectrum RUN --split trian
spectrum RUN --data FOLDER
spectrum RUN --accelerator 3
embed
embed RUN
embed RUN --out
embed RUN --out ''
embed RUN --out FILE
embed RUN --out FOLDER
embed RUN --out FILE/a.parquet
embed nowhere --out a.parquet
embed RUN --out a.parquet --data nowhere
embed RUN --out a.parquet --split nothing
embed RUN --out a.parquet --batch_size many
embed timm:no_such_model --out a.parquet
export
export RUN
export RUN --out a.pt
export RUN --out ''
export RUN --out a
export RUN --out precious.safetensors
export nowhere --out a.onnx
export FOLDER --out a.safetensors
export RUN@7x --out a.safetensors
export RUN --out a.onnx extra
report
report RUN
report --out a.html
report nowhere --out a.html
report RUN nowhere --out a.html
report FOLDER --out a.html
report RUN --out FILE
report RUN --out .
report RUN --out ''
report '' --out a.html
report RUN --out a.html --images maybe
check
check ''
check nothing
check no_module:loss
check os:no_such_function
check os:
check --processes 2
check frossl --processes 0
check frossl --processes x
check frossl --processes -1
check frossl --out FILE
check frossl --out ''
check frossl --hyper.nothing 3
check frossl --hyper.invariance x
check frossl vicreg
reproduce nothing
reproduce ''
reproduce frossl/fig99
reproduce frossl/fig2 --size huge
reproduce frossl/fig2 --seed x
reproduce frossl/fig2 --out ''
reproduce dynamics/fig1 --data nowhere
reproduce frossl/fig2 --redraw --out nowhere
recipes digit
recipes ''
recipes digits cifar10
recipes --all
''
nothing
pretain
-v
--verbose
--help-me
Pretrain digits
pretrain=digits
"""

HELP = """
--help
-h
--version
pretrain --help
pretrain -h
pretrain digits --help
pretrain digits --objective vicreg --help
pretrain cifar10 -h
pretrain digits --epochs 3 --help
evaluate --help
spectrum --help
embed --help
export --help
report --help
check --help
check frossl --help
reproduce --help
recipes --help
recipes
recipes digits
"""

BYTES = [
    ("pretrain", "caf\udce9"),
    ("pretrain", "digits", "--data", "caf\udce9"),
    ("pretrain", "digits", "--backbone.name", "caf\udce9"),
    ("pretrain", "digits", "--epochs", "\udcff"),
    ("pretrain", "digits", "--\udcff"),
    ("pretrain", "digits", "--objective", "\udcff"),
    ("pretrain", "digits", "--data", "a\0b"),
    ("pretrain", "digits", "--out", "a\0b"),
    ("pretrain", "a\0b"),
    ("pretrain", "--resume", "a\0b"),
    ("pretrain", "--resume", "caf\udce9"),
    ("pretrain", "digits", "--epochs", "9" * 5000),
    ("pretrain", "digits", "--seed", "9" * 400),
    ("pretrain", "x" * 5000),
    ("pretrain", "/".join("a" * 3000)),
    ("pretrain", "digits", "--out", "x" * 300),
    ("pretrain", "digits", "--backbone.arguments", "[" * 3000),
    ("pretrain", "digits", "--backbone.arguments", '{"a":' * 3000 + "1" + "}" * 3000),
    ("pretrain", "digits", "--data", "\n"),
    ("pretrain", "digits", "--backbone.name", "a\nb"),
    ("pretrain", "digits", "--backbone.name", "\x1b[31mred"),
    ("pretrain", "\x1b]0;title\x07"),
    ("pretrain", "digits", "--wandb\n"),
    ("evaluate", "a\0b"),
    ("evaluate", "caf\udce9"),
    ("evaluate", "x" * 5000),
    ("evaluate", "RUN@" + "9" * 400),
    ("evaluate", "RUN", "--seed", "9" * 5000),
    ("spectrum", "\udcff@3"),
    ("embed", "RUN", "--out", "a\0b"),
    ("embed", "RUN", "--out", "x" * 300 + ".parquet"),
    ("export", "RUN", "--out", "x" * 300 + ".safetensors"),
    ("report", "RUN", "--out", "x" * 300 + ".html"),
    ("report", "caf\udce9", "--out", "a.html"),
    ("check", "\udcff:\udcff"),
    ("check", "a\0b:c"),
    ("reproduce", "\udcff"),
    ("recipes", "\x1b[2J"),
    ("\udcff",),
    ("a\0b",),
]


def lines(text):
    return [tuple(shlex.split(line)) for line in text.strip().splitlines()]


REFUSED = [*(("pretrain", *line) for line in lines(PRETRAIN)), *lines(OTHERS), *BYTES]


@pytest.fixture
def place(tmp_path, monkeypatch, run, photos):
    """A working directory with a folder of the user's, a file, and damaged recipes; training and computing are
    failures."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "a.txt").write_text("precious")
    for name in ("precious.npz", "precious.safetensors"):
        (tmp_path / name).write_bytes(b"precious")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "unknown.json").write_text('{"epoch": 3}')
    (tmp_path / "typed.json").write_text('{"epochs": "3"}')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def trained(*_, **__):
        raise AssertionError("the command line was accepted")

    for name in (
        "pretraining.fit",
        "pretraining.run_processes",
        "conformance.check.measure_exactness",
        "reproduce.figure.load_figure",
    ):
        module, _, function = name.rpartition(".")
        monkeypatch.setattr(f"fullrank.{module}.{function}", trained, raising=False)
    words = {"FOLDER": "mine", "FILE": "mine/a.txt", "RUN": str(run.path), "PHOTOS": str(photos)}

    def fill(argument):
        for word, path in words.items():
            argument = argument.replace(word, path)
        return argument

    return fill


def tree(path):
    return {
        str(file.relative_to(path)): file.stat().st_mtime_ns if file.is_file() else None
        for file in sorted(path.rglob("*"))
    }


@pytest.mark.parametrize(
    "line", REFUSED, ids=lambda line: " ".join(line)[:60].encode("ascii", "backslashreplace").decode()
)
def test_a_bad_command_line_is_refused_in_one_line(line, place, attack, tmp_path, run):
    before, of_run = tree(tmp_path), tree(run.path)
    status, out, err = attack(*map(place, line))
    assert status == 2, out + err
    assert sum(row.startswith("fullrank: ") for row in err.splitlines()) == 1
    assert err.splitlines()[-1].isprintable(), "a message must not control the terminal"
    assert len(err.splitlines()[-1]) < 8000
    assert tree(tmp_path) == before
    assert tree(run.path) == of_run


@pytest.mark.parametrize("line", lines(HELP), ids=" ".join)
def test_help_and_lists_are_printed(line, place, attack, tmp_path):
    before = tree(tmp_path)
    status, out, err = attack(*line)
    assert (status, err) == (0, "")
    assert "fullrank" in out or "digits" in out
    assert tree(tmp_path) == before


def test_there_are_as_many_attacks_as_promised():
    assert len(set(REFUSED)) + len(set(lines(HELP))) >= 240
    assert os.sep == "/"
