import json

from fullrank.recipes import RECIPES, from_dict


def test_recipes_are_listed_and_printed(fullrank, refused):
    status, out, _ = fullrank("recipes")
    assert status == 0
    assert all(name in out for name in RECIPES)
    for name in ("digits", "imagenet100-dino-vit"):
        assert from_dict(json.loads(fullrank("recipes", name)[1])) == RECIPES[name]
    assert "did you mean 'digits'?" in refused("recipes", "digit")
