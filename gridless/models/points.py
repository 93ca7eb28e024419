"""Point-cloud networks: the paper's classifiers, a segmentation network of the same parts, modern variants of both, and
a network of maxima."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu

from gridless.nn.blocks import Dense, DownBlock, ResBlock, UpBlock, WideBlock, with_coords
from gridless.nn.choices import Choices
from gridless.nn.conv import FeaturelessConv, PointConv
from gridless.nn.maxima import MaxLevel
from gridless.nn.norm import BatchNorm
from gridless.nn.pool import MaxPool, MeanPool, Spread
from gridless.ops.segment_pool import segment_mean
from gridless.plan import Plan
from gridless.structures import Geometry, expect_geometry
from gridless.structures.rows import shape_in_words

ROOT2 = 2**0.5


def _arguments(local: dict[str, Any]) -> dict[str, Any]:
    """Arguments of a constructor, from its first line's locals()."""
    return {name: value for name, value in local.items() if name not in ("self", "__class__")}


def _given(model: Any, features: Any, geometry: Any) -> tuple[Tensor | None, Geometry]:
    """Features and geometry of `model(geometry)` or `model(features, geometry)`.

    Features (S, in_channels) default to the rows `features` of the cloud, or None if the network takes none.
    """
    if geometry is None:
        features, geometry = None, features
    expect_geometry(geometry)
    cloud, kind, channels = geometry[model.cloud], type(model).__name__, model.config["in_channels"]
    if features is not None and not channels:
        raise ValueError(f"{kind}: the network takes no features. Build it with in_channels=C.")
    if features is None and channels and "features" not in cloud.rows:
        message = "Call model(features, geometry), or put them into the cloud: Cloud.of(xyz, features=...)."
        raise ValueError(f"{kind}: the network needs features (S, {channels}). {message}")
    if channels and features is None:
        features = cloud.rows["features"]
    if features is not None and tuple(features.shape) != (len(cloud), channels):
        message = f"({len(cloud)}, {channels}), not {shape_in_words(features)}"
        raise ValueError(f"{kind}: the features of {len(cloud)} points must be {message}")
    return features, geometry


def _begin(model: Any, features: Any, geometry: Any) -> tuple[Tensor, Geometry]:
    """The first convolutions of `model(geometry)` or `model(features, geometry)`, normalised, and the geometry."""
    features, geometry = _given(model, features, geometry)
    x = model.stem(geometry)
    if model.where is not None:
        x = x + model.where(geometry[model.cloud].coords.to(x.dtype))
    if features is not None:
        x = x + model.feature_stem(features, geometry)
    return model.stem_norm(x, geometry), geometry


class PointResNet(nn.Module):
    """The paper's point-cloud classifier: every ball, sample and filter is written once, here.

    A convolution of the bare coordinates, then per level a down-sampling and an in-place residual block; radius and
    channels double from level to level. Then Dense, max over each cloud, two more Dense layers: logits (B, classes).
    `model(model.plan(cloud))`, or with `in_channels` `model(features, geometry)`.

    Args:
        classes: how many classes.
        width: channels of the first level.
        levels: how often the cloud is thinned.
        radius: of the first level's ball, in the units of the points.
        dropout: probability, in every block and in the head.
        down_stem: the first convolution already down-samples, in place of the first level's blocks: the paper's small
            network.
        dim: dimensions of the points.
        in_channels: features of each point, such as colour or intensity; where the call does not give them, they are
            the rows `features` of the cloud. None for 0.
        choices: basis, neighbourhood, fall-off and sampler, `gl.nn.Choices` or a mapping of its names; the paper's
            when left out. A recipe sets them one by one, `--set model.order=1`.
    """

    task = "classify"

    def __init__(
        self,
        classes: int = 40,
        width: int = 32,
        levels: int = 3,
        radius: float = 0.1125,
        dropout: float = 0.5,
        down_stem: bool = False,
        dim: int = 3,
        in_channels: int = 0,
        choices: Choices | Mapping[str, Any] | None = None,
    ) -> None:
        arguments = _arguments(locals())
        super().__init__()
        choices = Choices.of(arguments.pop("choices"))
        changes = choices.changes()
        self.config = {"model": "PointResNet", **arguments, **({"choices": changes} if changes else {})}
        plan = self.plan = Plan()  # what coordinates alone decide
        cloud = self.cloud = plan.points(dim)
        near = first = choices.search(plan, cloud, cloud, radius)
        conv = first_conv = choices.conv(dim, radius)
        self.where, self.stem_dropout = None, nn.Dropout(dropout if down_stem else 0.0)
        self.blocks = nn.ModuleList()
        channels = width
        if not down_stem:
            self.stem = FeaturelessConv(near, width, **conv)
            self.stem_norm = BatchNorm(width, cloud, relu="after")
        for level in range(levels):
            coarse = choices.sample(plan, cloud, radius)
            down = choices.search(plan, cloud, coarse, radius * ROOT2)
            down_conv = choices.conv(dim, radius * ROOT2)
            radius = 2 * radius
            near, conv = choices.search(plan, coarse, coarse, radius), choices.conv(dim, radius)
            if down_stem and level == 0:
                first, first_conv = down, down_conv
                self.stem = FeaturelessConv(down, width, **down_conv)
                self.stem_norm = BatchNorm(width, coarse, relu="after")
            else:
                self.blocks.append(DownBlock(down, width, 2 * width, dropout, **down_conv))
                width = 2 * width
            self.blocks.append(ResBlock(near, width, dropout, **conv))
            cloud = coarse
        self.feature_stem = PointConv(first, in_channels, channels, bias=False, **first_conv) if in_channels else None
        self.lift = Dense(width, 4 * width)
        self.pool = MaxPool(cloud)
        self.head = nn.Sequential(
            BatchNorm(4 * width, relu="before"),
            nn.Dropout(dropout),
            Dense(4 * width, 256),
            BatchNorm(256, relu="before"),
            nn.Dropout(dropout),
            Dense(256, classes),
        )

    def forward(self, features: Tensor | Geometry | None, geometry: Geometry | None = None) -> Tensor:
        x, geometry = _begin(self, features, geometry)
        x = self.stem_dropout(x)  # dropout and ReLU commute
        for block in self.blocks:
            x = block(x, geometry)
        return self.head(self.pool(self.lift(x), geometry))


def point_resnet_small(
    classes: int = 40,
    width: int = 32,
    levels: int = 3,
    radius: float = 0.1125,
    dropout: float = 0.5,
    dim: int = 3,
    in_channels: int = 0,
    choices: Choices | Mapping[str, Any] | None = None,
) -> PointResNet:
    """The paper's small network: 266,968 parameters for 40 classes; its first convolution down-samples.

    `classes`, `width`, `levels`, `radius`, `dropout`, `dim`, `in_channels` and `choices` are those of `PointResNet`.
    """
    return PointResNet(classes, width, levels, radius, dropout, True, dim, in_channels, choices)


class PointResNetPlus(nn.Module):
    """The same convolution in a network built as one would today, for accuracy.

    Finer sampling; absolute coordinates beside the convolution of the bare cloud; norm before ReLU throughout; wider
    bottlenecks (`WideBlock`); a normalised lift before the pooling, which is max and mean; dropout only in the head.
    Level l keeps points `spacing` * 2^l apart and convolves within `reach` times that (down-sampling within
    reach / sqrt 2). Logits (B, classes).

    Args:
        classes: how many classes.
        width: channels of the first level; they double from level to level.
        levels: how often the cloud is thinned.
        spacing: how far apart the points of the first thinned level are.
        reach: radius of a convolution over the spacing of its points; the paper's is 2.
        stem_radius: of the first convolution's ball.
        depth: in-place blocks of each level.
        ratio: channels inside a block over its output channels.
        lift: channels before the pooling.
        dropout: probability, in the head.
        drop_path: probability that the branch of a block is left out.
        depthwise: with it in-place blocks have a depthwise convolution of so many times their channels; `ratio` is that
            of down-sampling blocks alone then.
        dim: dimensions of the points.
        in_channels: features of each point, as those of `PointResNet`.
    """

    task = "classify"

    def __init__(
        self,
        classes: int = 40,
        width: int = 48,
        levels: int = 3,
        spacing: float = 0.08,
        reach: float = 2.5,
        stem_radius: float = 0.1125,
        depth: int = 1,
        ratio: float = 0.5,
        lift: int = 1024,
        dropout: float = 0.5,
        drop_path: float = 0.0,
        depthwise: float = 0.0,
        dim: int = 3,
        in_channels: int = 0,
    ) -> None:
        arguments = _arguments(locals())
        super().__init__()
        self.config = {"model": "PointResNetPlus", **arguments}
        plan = self.plan = Plan()
        cloud = self.cloud = plan.points(dim)
        near = plan.ball(cloud, cloud, stem_radius)
        self.stem = FeaturelessConv(near, width)
        self.feature_stem = PointConv(near, in_channels, width, bias=False) if in_channels else None
        self.where = Dense(dim, width, bias=False)
        self.stem_norm = BatchNorm(width, cloud, momentum=0.1, relu="after")
        self.blocks = nn.ModuleList()
        in_place: dict[str, Any] = {"ratio": depthwise or ratio, "depthwise": bool(depthwise)}
        for _ in range(levels):
            coarse = plan.rejection_sample(plan.ball(cloud, cloud, spacing))
            down = plan.ball(cloud, coarse, spacing * reach / ROOT2)
            near = plan.ball(coarse, coarse, spacing * reach)
            self.blocks.append(WideBlock(down, width, 2 * width, ratio))
            for _ in range(depth):
                self.blocks.append(WideBlock(near, 2 * width, 2 * width, drop_path=drop_path, **in_place))
            cloud, width, spacing = coarse, 2 * width, 2 * spacing
        self.last = cloud
        self.lift = Dense(width + dim, lift, bias=False)
        self.lift_norm = BatchNorm(lift, cloud, momentum=0.1, relu="after")
        self.max_pool, self.mean_pool = MaxPool(cloud), MeanPool(cloud)
        self.head = nn.Sequential(
            Dense(2 * lift, 512, bias=False),
            BatchNorm(512, momentum=0.1, relu="after"),
            nn.Dropout(dropout),
            Dense(512, 256, bias=False),
            BatchNorm(256, momentum=0.1, relu="after"),
            nn.Dropout(dropout),
            Dense(256, classes),
        )

    def forward(self, features: Tensor | Geometry | None, geometry: Geometry | None = None) -> Tensor:
        x, geometry = _begin(self, features, geometry)
        for block in self.blocks:
            x = block(x, geometry)
        x = self.lift_norm(self.lift(with_coords(x, geometry, self.last)), geometry)
        return self.head(torch.cat([self.max_pool(x, geometry), self.mean_pool(x, geometry)], 1))


class PointMaxNet(nn.Module):
    """Maxima over the nearest neighbours in place of convolutions: a classifier.

    At each level a small network tells where the neighbours of a point lie (`Surroundings`); then features pass from
    neighbour to neighbour as maxima (`MaxBlock`), in turns with point-wise blocks, all of them residual. Levels are
    Poisson-disk samples; channels double from level to level, the distance of points, too. Logits (B, classes). After
    Chen and others, Decoupled Local Aggregation for Point Cloud Learning.

    Args:
        classes: how many classes.
        width: channels of the first level, which has all points.
        depths: how often features pass from neighbour to neighbour, of each level.
        neighbours: nearest neighbours of a point, itself included.
        spacing: how far apart the points of the second level are.
        up: the axis whose coordinate the first level is told, besides where neighbours lie; None for none.
        lift: channels before the pooling, a maximum.
        dropout: probability, in the head.
        drop_path: probability that the last block's branch is left out; those before it in proportion.
        dim: dimensions of the points.
        in_channels: features of each point, as those of `PointResNet`.
    """

    task = "classify"

    def __init__(
        self,
        classes: int = 40,
        width: int = 96,
        depths: Sequence[int] = (4, 4, 4),
        neighbours: int = 20,
        spacing: float = 0.065,
        up: int | None = 1,
        lift: int = 2048,
        dropout: float = 0.5,
        drop_path: float = 0.15,
        dim: int = 3,
        in_channels: int = 0,
    ) -> None:
        arguments = _arguments(locals())
        super().__init__()
        if not depths or min(depths) < 1 or sum(depths) > 10_000:
            raise ValueError(f"PointMaxNet: depths are {list(depths)}. Give 1 to 10000 for each level.")
        self.config = {"model": "PointMaxNet", **arguments, "depths": list(depths)}
        plan = self.plan = Plan()
        cloud = self.cloud = plan.points(dim)
        near = plan.nearest(cloud, cloud, neighbours)
        self.feature_stem = Dense(in_channels, width, bias=False) if in_channels else None
        rates = torch.linspace(0, drop_path, sum(depths)).tolist()
        self.levels = nn.ModuleList()
        for level, depth in enumerate(depths):
            down = None
            if level:
                coarse = plan.rejection_sample(plan.ball(cloud, cloud, spacing))
                down, width, spacing = plan.nearest(cloud, coarse, neighbours), 2 * width, 2 * spacing
                cloud, near = coarse, plan.nearest(coarse, coarse, neighbours)
            level_up = up if level == 0 else None
            self.levels.append(MaxLevel(down, near, width, neighbours, spacing, level_up, rates[:depth]))
            rates = rates[depth:]
        self.norm, self.lift = BatchNorm(width, cloud, momentum=0.1), Dense(width, lift, bias=False)
        self.pool = MaxPool(cloud)
        self.head = nn.Sequential(
            Dense(lift, 512, bias=False),
            BatchNorm(512, momentum=0.1),
            nn.GELU(),
            Dense(512, 256, bias=False),
            BatchNorm(256, momentum=0.1),
            nn.GELU(),
            nn.Dropout(dropout),
            Dense(256, classes),
        )
        for module in self.modules():
            if isinstance(module, Dense):
                # Small beside the norms that follow, so that first steps turn them far.
                nn.init.trunc_normal_(module.weight, std=0.02)

    def forward(self, features: Tensor | Geometry | None, geometry: Geometry | None = None) -> Tensor:
        x, geometry = _given(self, features, geometry)
        if self.feature_stem is not None:
            x = self.feature_stem(x)
        for level in self.levels:
            x = level(x, geometry)
        assert x is not None
        return self.head(self.pool(gelu(self.lift(self.norm(x, geometry))), geometry))


class PointUNet(nn.Module):
    """Segmentation: the paper's encoder, a decoder along the transposed down-sampling edges with skips.

    `model(geometry)`, or with `in_channels` `model(features, geometry)`; logits (S, classes), one row per point.

    Args:
        classes: how many classes a point may have.
        width: channels of the first level; they double from level to level.
        levels: how often the cloud is thinned.
        radius: of the first level's ball, in the units of the points.
        dropout: probability, in every block.
        in_channels: features of each point, as those of `PointResNet`.
        dim: dimensions of the points.
    """

    task = "scenes"

    def __init__(
        self,
        classes: int,
        width: int = 32,
        levels: int = 3,
        radius: float = 0.1125,
        dropout: float = 0.5,
        in_channels: int = 0,
        dim: int = 3,
    ) -> None:
        arguments = _arguments(locals())
        super().__init__()
        self.config = {"model": "PointUNet", **arguments}
        plan = self.plan = Plan()
        cloud = self.cloud = plan.points(dim)
        near = plan.ball(cloud, cloud, radius)
        self.stem, self.where = FeaturelessConv(near, width), None
        self.feature_stem = PointConv(near, in_channels, width, bias=False) if in_channels else None
        self.stem_norm = BatchNorm(width, cloud, relu="after")
        self.encoder, self.decoder = nn.ModuleList(), nn.ModuleList()
        for _ in range(levels):
            coarse = plan.rejection_sample(near)
            down = plan.ball(cloud, coarse, radius * ROOT2)
            finer, radius = near, 2 * radius
            near = plan.ball(coarse, coarse, radius)
            self.encoder.append(
                nn.ModuleList([DownBlock(down, width, 2 * width, dropout), ResBlock(near, 2 * width, dropout)])
            )
            up = plan.transpose(down)
            self.decoder.insert(0, nn.ModuleList([UpBlock(up, 2 * width, width), ResBlock(finer, width, dropout)]))
            cloud, width = coarse, 2 * width
        self.head = Dense(width >> levels, classes)

    def forward(self, features: Tensor | Geometry | None, geometry: Geometry | None = None) -> Tensor:
        x, geometry = _begin(self, features, geometry)
        skips = []
        for down, in_place in self.encoder:  # type: ignore[misc]
            skips.append(x)
            x = in_place(down(x, geometry), geometry)
        for (up, in_place), skip in zip(self.decoder, reversed(skips), strict=True):  # type: ignore[misc]
            x = in_place(up(x, skip, geometry), geometry)
        return self.head(x)

    def loss(self, geometry: Geometry, category: Tensor, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        """The cross entropy over all points whose rows `part`, their class, are not negative; and the share of those
        that are right, times the number of clouds."""
        cloud = geometry[self.cloud]
        part = cloud.rows["part"]
        judged = (cloud.example < cloud.num_examples) & (part >= 0)
        logits = self(geometry).float()
        # Points that do not count are multiplied by zero: a captured graph does not know their number.
        each = cross_entropy(logits, part.clamp(min=0), label_smoothing=smoothing, reduction="none")
        points = judged.sum().clamp(min=1)
        right = ((logits.argmax(1) == part) & judged).sum()
        return torch.where(judged, each, 0.0).sum() / points, right / points * cloud.num_examples


class PointUNetPlus(nn.Module):
    """Parts of shapes: the encoder of `PointResNetPlus`, and a decoder along the transposed down-sampling edges.

    The decoder adds what the encoder had at each level, with one in-place block per level; the head also sees the
    cloud as a whole (max and mean over its coarsest points) and, where there are several, its category. `parts` says
    how many parts each category has; they are numbered through. `model(geometry, category)`, category (B) int64: logits
    (S, sum of parts), one row per point, -inf for the parts of other categories. With one category it may be left out.

    `loss` takes the right parts from the cloud's rows `part`; with `in_channels` features are its rows `features`.
    With `overlap` it also asks for a large mIoU, in which a part of few points counts as much as one of many: that many
    times 1 - mIoU is added, with the chances of parts in place of predictions. `hidden` are the channels of the head.
    `width`, `levels`, `spacing`, `reach`, `stem_radius`, `depth`, `ratio`, `dropout`, `drop_path`, `depthwise` and
    `dim` are those of `PointResNetPlus`.
    """

    task = "parts"

    def __init__(
        self,
        parts: Sequence[int] = (50,),
        width: int = 48,
        levels: int = 4,
        spacing: float = 0.04,
        reach: float = 2.5,
        stem_radius: float = 0.08,
        depth: int = 1,
        ratio: float = 0.5,
        hidden: int = 256,
        dropout: float = 0.5,
        drop_path: float = 0.0,
        depthwise: float = 0.0,
        overlap: float = 0.0,
        dim: int = 3,
        in_channels: int = 0,
    ) -> None:
        arguments = _arguments(locals())
        super().__init__()
        if isinstance(parts, int):
            raise TypeError(
                f"PointUNetPlus: parts is {parts!r}. Give the number of parts of each category, such as [{parts}]."
            )
        self.config = {"model": "PointUNetPlus", **arguments, "parts": list(parts)}
        if not 0 <= overlap < float("inf"):
            raise ValueError(f"PointUNetPlus: overlap is {overlap}. Give a loss weight of at least 0.")
        self.overlap = overlap
        plan = self.plan = Plan()
        cloud = self.cloud = plan.points(dim)
        near = plan.ball(cloud, cloud, stem_radius)
        self.stem = FeaturelessConv(near, width)
        self.feature_stem = PointConv(near, in_channels, width, bias=False) if in_channels else None
        self.where = Dense(dim, width, bias=False)
        self.stem_norm = BatchNorm(width, cloud, momentum=0.1, relu="after")
        self.encoder, self.decoder = nn.ModuleList(), nn.ModuleList()
        in_place: dict[str, Any] = {"ratio": depthwise or ratio, "depthwise": bool(depthwise)}
        for _ in range(levels):
            coarse = plan.rejection_sample(plan.ball(cloud, cloud, spacing))
            down = plan.ball(cloud, coarse, spacing * reach / ROOT2)
            self.decoder.insert(
                0,
                nn.ModuleList(
                    [UpBlock(plan.transpose(down), 2 * width, width), WideBlock(near, width, width, **in_place)]
                ),
            )
            near = plan.ball(coarse, coarse, spacing * reach)
            blocks = nn.ModuleList([WideBlock(down, width, 2 * width, ratio)])
            for _ in range(depth):
                blocks.append(WideBlock(near, 2 * width, 2 * width, drop_path=drop_path, **in_place))
            self.encoder.append(blocks)
            cloud, width, spacing = coarse, 2 * width, 2 * spacing
        self.last = cloud
        self.max_pool, self.mean_pool = MaxPool(cloud), MeanPool(cloud)
        self.whole, self.spread = Dense(2 * width + len(parts), hidden, bias=False), Spread(self.cloud)
        self.local = Dense((width >> levels) + dim, hidden, bias=False)
        self.head = nn.ModuleList(
            [BatchNorm(hidden, self.cloud, momentum=0.1, relu="after"), nn.Dropout(dropout), Dense(hidden, sum(parts))]
        )
        category = torch.repeat_interleave(torch.arange(len(parts)), torch.tensor(list(parts)))
        self.register_buffer("allowed", torch.arange(len(parts))[:, None] == category, persistent=False)

    def forward(self, geometry: Geometry, category: Tensor | None = None) -> Tensor:
        x, geometry = _begin(self, geometry, None)
        allowed: Tensor = self.allowed  # type: ignore[assignment]
        examples = geometry[self.cloud].num_examples
        if category is None:
            if len(allowed) > 1:
                raise ValueError(
                    f"PointUNetPlus: category is missing ({len(allowed)} categories). Give that of each cloud (B)."
                )
            category = torch.zeros(examples, dtype=torch.int64, device=allowed.device)
        skips = []
        for blocks in self.encoder:
            skips.append(x)
            for block in blocks:  # type: ignore[attr-defined]
                x = block(x, geometry)
        kind = (category[:, None] == torch.arange(len(allowed), device=category.device)).to(x.dtype)
        whole = self.whole(torch.cat([self.max_pool(x, geometry), self.mean_pool(x, geometry), kind], 1))
        for (up, in_place), skip in zip(self.decoder, reversed(skips), strict=True):  # type: ignore[misc]
            x = in_place(up(x, skip, geometry), geometry)
        x = self.local(with_coords(x, geometry, self.cloud)) + self.spread(whole, geometry)
        norm, dropout, classify = self.head
        logits = classify(dropout(norm(x, geometry)))
        # Padding belongs to no example: whose parts it may have does not matter.
        example = geometry[self.cloud].example.clamp(max=examples - 1)
        return logits.float().masked_fill(~allowed[category[example]], -torch.inf)

    def loss(self, geometry: Geometry, category: Tensor, smoothing: float = 0.0) -> tuple[Tensor, Tensor]:
        """The cross entropy over all points whose part is known (not negative), smoothed among the parts of each
        category, and `overlap` times what is missing of the expected mIoU; and how many clouds' worth of points are
        right: the share of points, times the number of clouds."""
        cloud = geometry[self.cloud]
        logits = self(geometry, category)
        judged = (cloud.example < cloud.num_examples) & (cloud.rows["part"] >= 0)
        part = torch.where(judged, cloud.rows["part"], 0)
        log = logits.log_softmax(1)
        known = log.isfinite()
        smooth = torch.where(known, log, 0.0).sum(1) / known.sum(1)
        each = (1 - smoothing) * log.gather(1, part[:, None])[:, 0].clamp(min=-100.0) + smoothing * smooth
        points = judged.sum().clamp(min=1)
        loss = -torch.where(judged, each, 0.0).sum() / points
        if self.overlap:
            loss = loss + self.overlap * (1 - self._expected_iou(log.exp(), part, judged, cloud, category))
        right = ((logits.argmax(1) == part) & judged).sum()
        return loss, right / points * cloud.num_examples

    def _expected_iou(self, chance: Tensor, part: Tensor, judged: Tensor, cloud: Any, category: Tensor) -> Tensor:
        """The mean over shapes, and over the parts of each, of intersection over union, as the chances have it."""
        is_part = (part[:, None] == torch.arange(chance.shape[1], device=part.device)) & judged[:, None]
        chance = torch.where(judged[:, None], chance, 0.0)
        both = torch.where(is_part, chance, 0.0)
        common, union = segment_mean(torch.cat([both, chance + is_part - both], 1), cloud.splits).chunk(2, 1)
        # One point more in both: a part that is neither there nor expected counts 1.
        one = 1 / cloud.sizes[:, None].clamp(min=1)
        allowed: Any = self.allowed[category]  # type: ignore[index]
        return (((common + one) / (union + one) * allowed).sum(1) / allowed.sum(1)).mean()


# Sizes that are the defaults of their networks; the paper's large one has 769,992 parameters for 40 classes.
point_resnet_large, point_resnet_plus = PointResNet, PointResNetPlus
point_unet, point_unet_plus = PointUNet, PointUNetPlus
point_max_net = PointMaxNet
