import pickle
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import fullrank
from fullrank.cli import main
from fullrank.errors import UserError
from fullrank.images import open_images
from fullrank.methods.backbones import feature_dim
from fullrank.recipes import build_method


@pytest.fixture(scope="module")
def digits():
    source = open_images("digits")["all"]
    return [Image.fromarray(source.open(index)[..., 0]) for index in range(5)]


def same_weights(one, other):
    return all(torch.equal(tensor, other[name]) for name, tensor in one.items())


def test_a_run_loads_its_newest_checkpoint_in_eval_mode(run, small):
    model = fullrank.load(run.path)
    weights = run.checkpoint().weights()
    for part, network in (("backbone", model.backbone), ("projector", model.projector)):
        assert same_weights({f"{part}.{name}": value for name, value in network.state_dict().items()}, weights)
    assert not model.backbone.training
    assert not model.projector.training
    assert (model.name, model.spec, model.recipe) == (str(run.path), small.backbone, run.recipe)
    assert (model.preprocess.size, model.preprocess.mean) == (8, run.recipe.data.mean)


def test_a_step_of_a_run_loads_that_checkpoint(run):
    first = run.checkpoints[0]
    model = fullrank.load(f"{run.path}@{first.step}")
    assert torch.equal(model.backbone.conv1.weight, first.weights()["backbone.conv1.weight"])
    assert not torch.equal(model.backbone.conv1.weight, run.checkpoint().weights()["backbone.conv1.weight"])
    assert model.name == f"{run.path}@{first.step}"


def test_a_run_is_found_in_the_folder_of_runs_and_printed_as_one_line(copy, tmp_path, monkeypatch):
    (tmp_path / "runs").mkdir()
    copy.rename(tmp_path / "runs" / "w4-s0")
    monkeypatch.chdir(tmp_path)
    model = fullrank.load("w4-s0")
    assert (model.path, fullrank.load("w4-s0@11").step) == (Path("runs/w4-s0"), 11)
    (tmp_path / "w4-s0").mkdir()  # another folder of this name
    assert (fullrank.load("w4-s0").path, fullrank.load("w4-s0@11").step) == (Path("runs/w4-s0"), 11)
    assert str(model).count("\n") == 0
    assert len(str(model)) < 200


def test_a_loaded_run_can_be_pickled(run, digits):
    model = fullrank.load(run.path)
    copy = pickle.loads(pickle.dumps(model))
    assert torch.equal(copy.features(digits), model.features(digits))
    assert same_weights(copy.untrained().state_dict(), model.untrained().state_dict())


def test_the_untrained_network_has_the_initial_weights_of_the_run(run):
    assert same_weights(fullrank.load(run).untrained().state_dict(), build_method(run.recipe).backbone.state_dict())


def test_features_of_images_are_those_of_the_backbone(run, digits):
    model = fullrank.load(run.path)
    features = model.features(digits)
    assert features.shape == (5, 16)
    pixels = torch.stack([model.preprocess.pixels(picture) for picture in digits])
    with torch.inference_mode():
        torch.testing.assert_close(features, model.backbone(model.preprocess.normalize(pixels)))
    assert not features.requires_grad
    torch.nn.Linear(16, 2)(features).sum().backward()  # a head of the user


def test_features_accept_one_image_paths_arrays_and_tensors(run, photos):
    model, path = fullrank.load(run), next(photos.rglob("*.png"))
    picture = Image.open(path)
    array = np.asarray(picture)
    tensor = torch.tensor(array).permute(2, 0, 1)
    expected = model.features([picture])
    assert expected.shape == (1, 16)
    floats = (array / 255).astype(np.float32)
    same: list = [path, str(path), [path], picture, array, array / 255, floats, tensor, tensor / 255, tensor[None]]
    same += [array[None], (image for image in [path]), [np.asfortranarray(array)], (tensor / 255).double()]
    for images in same:
        torch.testing.assert_close(model.features(images), expected)
    mixed = model.features([array, picture, tensor], batch_size=2)
    torch.testing.assert_close(mixed, expected.expand(3, -1))
    opened = open_images("digits")["all"].subset(range(5))
    torch.testing.assert_close(model.features(opened, batch_size=2), model.features([opened.open(i) for i in range(5)]))


@pytest.mark.parametrize(
    ("images", "words"),
    [
        ([], "empty"),
        ("no/such.png", "'no/such.png' cannot be read"),
        (3, "expected a path"),
        (np.full((8, 8), np.nan), r"expected \[0, 1\]"),
        (np.zeros((3, 8, 8), np.uint8), "has 8 channels, expected 1"),
        (torch.zeros(2, 2, 2, 2, 2), "shape"),
    ],
)
def test_what_is_no_image_is_an_error_of_one_line(run, images, words):
    with pytest.raises(UserError, match=words) as error:
        fullrank.load(run.path).features(images)
    assert "\n" not in str(error.value)


def test_a_timm_model_has_pretrained_weights_and_its_preprocessing(monkeypatch):
    requested = {}
    create = timm.create_model

    def offline(name, *, pretrained=False, **keywords):
        requested[name] = pretrained
        return create(name, pretrained=False, **keywords)

    monkeypatch.setattr("fullrank.models.loading.model_info", lambda *arguments, **keywords: None)
    monkeypatch.setattr(timm, "create_model", offline)
    model = fullrank.load("timm:test_resnet")
    assert requested == {"test_resnet": True}
    assert (model.name, model.recipe, model.projector) == ("timm:test_resnet", None, None)
    assert (model.preprocess.channels, model.preprocess.size) == (3, 160)
    transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model.backbone))
    assert model.preprocess.resized == transform.transforms[0].size > 160
    assert model.features([Image.new("RGB", (200, 170))]).shape == (1, feature_dim(model.backbone))
    state = torch.get_rng_state()
    assert same_weights(model.untrained().state_dict(), model.untrained().state_dict())
    assert torch.equal(torch.get_rng_state(), state)


def test_unavailable_weights_are_an_error_of_one_line(monkeypatch, tmp_path):
    def no_network(*arguments, **keywords):
        raise ConnectionError("Name or service\nnot known")

    def never(*arguments, **keywords):
        pytest.fail("timm repeats the request")

    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("fullrank.models.loading.model_info", no_network)
    monkeypatch.setattr(timm, "create_model", never)
    words = r"the weights of timm:test_resnet are not available \(ConnectionError: Name or service\)"
    with pytest.raises(UserError, match=words):
        fullrank.load("timm:test_resnet")


def test_an_exported_file_gives_equal_features(run, tmp_path, digits, capsys):
    out = tmp_path / "backbone.safetensors"
    assert main(["export", str(run.path), "--out", str(out)]) == 0
    message = capsys.readouterr().err
    assert f"fullrank.load('file:{out}')" in message
    assert "timm.create_model" not in message  # timm has no small stem
    before, after = fullrank.load(run.path), fullrank.load(f"file:{out}")
    assert torch.equal(before.features(digits), after.features(digits))
    assert (after.spec, after.preprocess, after.recipe) == (before.spec, before.preprocess, None)


def test_plain_timm_loads_a_standard_stem_by_the_printed_command(tmp_path, capsys):
    out = tmp_path / "backbone.safetensors"
    assert main(["export", "timm-untrained:test_resnet", "--out", str(out)]) == 0
    message = capsys.readouterr().err.splitlines()[-1].removeprefix("or ")
    network = eval(message.removesuffix(".load_state_dict(…)"), {"timm": timm})
    network.load_state_dict(load_file(out))
    images = torch.randn(2, 3, 24, 24, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        assert torch.equal(network.eval()(images), fullrank.load("timm-untrained:test_resnet").backbone(images))


@pytest.mark.parametrize(
    ("text", "hint"), [("runs/photo", "runs/photos"), ("runs/photo@100", "runs/photos"), ("tim:resnet18", "timm")]
)
def test_a_mistyped_model_names_the_nearest_one(text, hint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "photos").mkdir(parents=True)
    with pytest.raises(UserError, match=rf"or file:PATH; did you mean '{hint}'\?"):
        fullrank.load(text)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("nowhere", "model 'nowhere' is not a run directory; expected RUN, RUN@STEP, timm:NAME, timm-untrained:NAME"),
        ("{file}", "is a file; write file:"),
        ("{empty}", "no run at .*: it has no recipe.json; give the folder that `fullrank pretrain` wrote"),
        ("{run}@7", "has no checkpoint of step 7; choose one of the steps 6, 11, 16, 22"),
        ("{run}@first", "the step is 'first', expected a number, e.g. .*@1000"),
        ("timm:resnet81", "unknown backbone 'resnet81'.*did you mean 'resnet18'"),
        ("timm:mobilevit_s.none", "choose a timm model such as mobilevit_s"),
        ("timm:", "expected RUN, RUN@STEP, timm:NAME, timm-untrained:NAME, hf-hub:OWNER/NAME or file:PATH"),
        ("file:nowhere", "nowhere is not a file; expected a file of `fullrank export"),
        ("file:{file}", "not a file of weights .*; expected a file of `fullrank export"),
        ("file:{foreign}", "does not name its network; .*--backbone.name"),
        ("file:{other}", r"do not match its metadata"),
    ],
)
def test_a_wrong_model_is_an_error_of_one_line(model, message, run, tmp_path):
    paths = {"run": run.path, "file": tmp_path / "note.txt", "empty": tmp_path / "empty"}
    paths |= {name: tmp_path / f"{name}.safetensors" for name in ("foreign", "other")}
    paths["file"].write_text("a note")
    paths["empty"].mkdir()
    save_file({"w": torch.ones(2)}, paths["foreign"])
    save_file({"w": torch.ones(2)}, paths["other"], metadata=fullrank.load(run.path).metadata)
    with pytest.raises(UserError, match=message) as error:
        fullrank.load(model.format(**paths))
    assert "\n" not in str(error.value)


def test_weights_of_another_network_are_an_error(copy):
    path = copy / "recipe.json"
    path.write_text(path.read_text().replace("16,\n", "32,\n"))
    with pytest.raises(UserError, match=r"does not match .*recipe\.json .*size mismatch"):
        fullrank.load(copy)
