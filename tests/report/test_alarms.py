from fullrank.report.alarms import LANE, lanes, lines, said
from fullrank.report.curves import losses


def warning(step, message="backbone: 3 dimensions died", **rest):
    return {"step": step, "kind": "alarm", "message": message, **rest}


def run(make_record, label, *steps):
    train = tuple({"step": step, "loss": 1.0 / (step + 1)} for step in range(0, 100, 10))
    return make_record(label=label, train=train, warnings=tuple(map(warning, steps)))


def test_each_run_with_alarms_has_a_lane_of_its_own_from_the_top_down(make_record):
    marks, room = lanes([run(make_record, "a", 20, 50), run(make_record, "quiet"), run(make_record, "c", 30)])
    assert [(mark["meta"]["run"], mark["x"], mark["y"]) for mark in marks] == [("a", [20, 50], [1, 1]), ("c", [30], [0])]
    assert room == 2 * LANE
    assert marks[0]["marker"]["color"] != marks[1]["marker"]["color"]


def test_alarms_of_one_step_share_a_mark_that_tells_of_both(make_record):
    ((mark,), _) = lanes([make_record(label="a", warnings=(warning(20, "one <b>"), warning(20, "two")))])
    assert (mark["x"], mark["text"], mark["meta"]["texts"]) == ([20], ["one &lt;b&gt;<br>two"], ["one <b>; two"])


def test_a_line_goes_down_at_each_step_with_alarms_once(make_record):
    drawn = lines([run(make_record, "a", 20, 20, 50)], top=0.9)
    assert [(shape["x0"], shape["x1"], shape["y0"], shape["y1"]) for shape in drawn] == [(20, 20, 0, 0.9), (50, 50, 0, 0.9)]


def test_the_strip_lies_above_the_panels_on_the_same_steps(make_record):
    figure = losses([run(make_record, "a", 20)])
    assert [trace["meta"]["quantity"] for trace in figure["data"]] == ["alarm", "loss"]
    strip, panel = (figure["layout"][axis]["domain"] for axis in ("yaxis", "yaxis2"))
    assert panel[1] < strip[0] < strip[1] <= 1.0
    assert len(figure["layout"]["shapes"]) == 1


def test_without_an_alarm_there_is_neither_strip_nor_line(make_record):
    figure = losses([run(make_record, "a")])
    assert [trace["meta"]["quantity"] for trace in figure["data"]] == ["loss"]
    assert figure["layout"]["shapes"] == []


def test_the_kind_of_an_alarm_is_said_once():
    assert said(warning(1)) == "backbone: 3 dimensions died"
    assert said(warning(1, alarm="dimensional collapse")) == "dimensional collapse, backbone: 3 dimensions died"
    assert said(warning(1, "divergence, loss: 40, expected 4", alarm="divergence")) == "divergence, loss: 40, expected 4"
