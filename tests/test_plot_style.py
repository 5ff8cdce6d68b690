"""Labels at the ends of lines."""

import numpy as np

from fullrank.plot_style import label_ends, subplots


def test_labels_keep_their_order_and_distance_and_a_line_without_a_visible_point_has_none():
    figure, ((axis,),) = subplots(height=3.0)
    for name, end in {"low": 0.0, "close": 0.99, "high": 1.0}.items():
        axis.plot([0, 1, 2], [0.5, end, np.nan], label=name)
    axis.plot([0, 1], [np.nan, np.nan], label="invisible")
    label_ends(axis, gap=12.0)
    figure.draw_without_rendering()
    places = {text.get_text(): text.get_window_extent().y0 * 72 / figure.dpi for text in axis.texts}
    assert sorted(places, key=lambda name: places[name]) == ["low", "close", "high"]
    assert places["high"] - places["close"] >= 11.9
