"""How much the change log may hold, and for how long."""

from __future__ import annotations

from pydantic import Field

from tidemill.contracts import Config

MIB = 1 << 20


class LogConfig(Config):
    """`log:` of a pipeline."""

    uri: str | None = Field(
        default=None,
        description="Where the log lives: a directory, or any pyarrow.fs URI (s3://, hdfs://, ...) when Spark "
        "executors run on other machines. Default: a directory inside the pipeline's state directory.",
    )
    segment_bytes: int = Field(
        default=64 * MIB,
        gt=0,
        description="A segment that has grown to this size is closed and a new one begun. Trimming removes whole "
        "segments.",
    )
    max_bytes: int = Field(
        default=8 << 30,
        gt=0,
        description="Undelivered bytes at which capture waits for the stream. One append may go past it.",
    )
    keep_for_optional_bytes: int = Field(
        default=8 << 30,
        ge=0,
        description="Delivered bytes to keep for a sink that the checkpoint does not wait for and that lags. "
        "A sink that lags further loses its place: an error names the events it never gets.",
    )
    retention_bytes: int = Field(
        default=0,
        ge=0,
        description="Delivered bytes to keep for replay. 0: not limited by size, and trimmed as soon as delivered "
        "unless retention_seconds is set. With both set, whichever is reached first lets a segment go.",
    )
    retention_seconds: float = Field(
        default=0,
        ge=0,
        description="How long to keep delivered segments for replay. 0: not limited by age, and trimmed as soon as "
        "delivered unless retention_bytes is set.",
    )
    fsync: bool = Field(
        default=True,
        description="Wait for the disk at each append. Without it a power failure may cost the newest appends, which "
        "are captured again if the source still has them; a killed process costs nothing either way.",
    )
