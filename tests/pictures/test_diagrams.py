"""Plans, networks and blocks as boxes and arrows."""

from __future__ import annotations

import pytest

import gridless as gl
from gridless.pictures.diagrams import of_block, of_network, of_plan


def test_every_line_of_a_plan_is_a_box_with_arrows_from_what_it_reads():
    plan = gl.models.PointResNet().plan
    boxes, arrows = of_plan(plan)
    assert list(boxes) == [str(name) for name in plan.steps]
    assert set(arrows) == {(str(i), str(name)) for name, step in plan.steps.items() for i in step.inputs}
    assert "radius 0.1125" in boxes["N00"].text
    assert {box.column for name, box in boxes.items() if name.startswith("X")} == {0}


def test_a_network_has_its_convolutions_beside_the_plan_in_order():
    model = gl.models.PointResNet()
    boxes, arrows = of_network(model)
    layers = [name for name, box in boxes.items() if box.column == 2]
    assert layers == ["stem", *(f"blocks.{i}.branch.conv" for i in range(6))]
    assert [boxes[name].text.split("\n")[0] for name in layers[:3]] == [
        "featureless conv",
        "down-sample conv",
        "in-place conv",
    ]
    assert ("N00", "stem") in arrows
    assert ("stem", "blocks.0.branch.conv") in arrows


def test_event_convolutions_are_joined_to_their_streams():
    boxes, arrows = of_network(gl.models.n_mnist())
    assert ("X0", "downs.0.conv") in arrows
    assert ("X1", "downs.0.conv") in arrows
    assert len({(box.column, box.row) for box in boxes.values()}) == len(boxes)


def test_a_block_is_drawn_as_its_forward_runs():
    boxes, _ = of_block(gl.models.PointResNet().blocks[0])
    texts = [box.text for box in boxes.values()]
    assert [texts.count(t) for t in ("sampled points", "dense 32 to 16", "dense 32 to 64", "+", "ReLU")] == [1] * 5
    assert texts.count("dropout 0.5") == 2
    assert len({(box.column, box.row) for box in boxes.values()}) == len(boxes)


@pytest.mark.parametrize("suffix", [".png", ".svg", ".html"])
def test_plans_and_networks_are_shown_and_saved(tmp_path, suffix):
    model = gl.models.PointResNet(levels=1)
    for number, picture in enumerate((gl.show(model.plan), gl.show(model))):
        path = picture.save(tmp_path / f"{number}{suffix}")
        assert path.stat().st_size > 1000
    assert gl.show(model.plan).words == "plan: 2 clouds or streams, 3 searches"
    assert "<iframe" in gl.show(model)._repr_html_()


def test_a_plan_is_no_video_and_has_no_colours(tmp_path):
    plan = gl.models.PointResNet(levels=1).plan
    with pytest.raises(ValueError, match=r"video .*plan"):
        gl.show(plan).save(tmp_path / "plan.gif")
    with pytest.raises(ValueError, match="show: a plan"):
        gl.show(plan, colour="label")
