"""The shape of a transformer, as far as moving work needs it."""

from __future__ import annotations

from dataclasses import dataclass, fields

from conductor.errors import InvalidSpecError


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A stack of equal decoder layers. The field names are the keys of `--model-shape`.

    Attributes:
        hidden: model width.
        heads: attention heads.
        kv_heads: key and value heads; each serves `heads / kv_heads` query heads (GQA). 0 is `heads`.
        sequence: tokens of a sample.
        mlp_width: inner width of the MLP; 0 is four times `hidden`.
        layers: of the whole model.
        microbatch: samples of a micro-batch.
        matrices: of an MLP: 2, or 3 with a gate.
        itemsize: bytes of a number.
        parts: the MLP is cut into so many equal slices.
    """

    hidden: int
    heads: int
    kv_heads: int = 0
    sequence: int
    mlp_width: int = 0
    layers: int
    microbatch: int = 1
    matrices: int = 2
    itemsize: int = 2
    parts: int = 32

    def __post_init__(self) -> None:
        """Fills the defaults and checks that everything divides.

        Raises:
            InvalidSpecError: names what does not divide, or what is not positive.
        """
        if self.kv_heads == 0:
            object.__setattr__(self, "kv_heads", self.heads)
        if self.mlp_width == 0:
            object.__setattr__(self, "mlp_width", 4 * self.hidden)
        for field in fields(self):
            if getattr(self, field.name) < 1:
                raise InvalidSpecError(
                    f"{field.name} must be at least 1, not {getattr(self, field.name)}"
                )
        for whole, part in (
            ("hidden", "heads"), ("heads", "kv_heads"), ("mlp_width", "parts"),
        ):  # fmt: skip
            if getattr(self, whole) % getattr(self, part):
                raise InvalidSpecError(
                    f"{whole} = {getattr(self, whole)} does not divide by"
                    f" {part} = {getattr(self, part)}"
                )

    @classmethod
    def parse(cls, text: str) -> ModelShape:
        """Reads `hidden=4096,heads=32,sequence=4096,layers=32`.

        Raises:
            InvalidSpecError: names the key that is unknown, missing or no whole number.
        """
        known = {field.name: field for field in fields(cls)}
        values: dict[str, int] = {}
        for entry in text.split(","):
            key, _, value = (part.strip() for part in entry.partition("="))
            if key not in known:
                raise InvalidSpecError(
                    f"a model shape has no {key!r}: its keys are {', '.join(known)}"
                )
            if not value.isdigit():
                raise InvalidSpecError(f"{key} must be a whole number, not {value!r}")
            values[key] = int(value)
        for key in ("hidden", "heads", "sequence", "layers"):
            if key not in values:
                raise InvalidSpecError(f"a model shape needs {key}")
        return cls(**values)

    @property
    def tokens(self) -> int:
        """Tokens of a micro-batch."""
        return self.microbatch * self.sequence

    @property
    def head_width(self) -> int:
        """Width of a head."""
        return self.hidden // self.heads

    @property
    def activation_bytes(self) -> int:
        """The activation between two layers."""
        return self.tokens * self.hidden * self.itemsize

    @property
    def group_bytes(self) -> int:
        """A query head's slice of that, times the query heads of a group: q, or the output."""
        return self.tokens * self.head_width * self.itemsize * (self.heads // self.kv_heads)

    @property
    def kv_bytes(self) -> int:
        """A key (or value) head."""
        return self.tokens * self.head_width * self.itemsize

    def forward_flops(self) -> dict[str, float]:
        """Floating-point operations of one layer's forward, by what does them; attention is causal."""
        tokens, hidden = float(self.tokens), float(self.hidden)
        kv_width = float(self.kv_heads * self.head_width)
        return {
            "qkv": 2.0 * tokens * hidden * (hidden + 2.0 * kv_width),
            "core": 2.0 * tokens * self.sequence * hidden,
            "out": 2.0 * tokens * hidden * hidden,
            "mlp": 2.0 * tokens * hidden * self.mlp_width * self.matrices,
        }

    def attention_weight_bytes(self) -> float:
        """Projection weights of one KV group of one layer."""
        width = (self.heads // self.kv_heads) * self.head_width
        return float(self.hidden * (2 * width + 2 * self.head_width) * self.itemsize)

    def mlp_weight_bytes(self) -> float:
        """Weights of one slice of one layer's MLP."""
        return float(self.hidden * (self.mlp_width // self.parts) * self.matrices * self.itemsize)
