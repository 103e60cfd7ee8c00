"""A pipeline's processors over events that are sent again: the chain as the document has it now."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

from tidemill.config import Pipeline
from tidemill.config.secrets import reveal
from tidemill.errors import ProcessingError
from tidemill.model.block import Block
from tidemill.model.delivery import Delivery
from tidemill.model.table import Table
from tidemill.service.schema.structures import KeptStructures, run_until_known
from tidemill.stream.lane.chain import Chain, ChainRun
from tidemill.stream.lane.spool import Spool


class EventChain:
    """Nothing is done to an event of a pipeline without processors."""

    def __init__(self, pipeline: Pipeline) -> None:
        specs = [(p.type, reveal(p.config)) for p in pipeline.spec.processors]
        self._changes_nothing = not specs
        self._structures = KeptStructures(pipeline)
        self._chain = Chain(specs, pipeline.source_id)

    def blocks(self, block: Block) -> list[Block]:
        """What becomes of the event; nothing if a processor drops it. `ProcessingError` if one fails on it, whatever
        its on_error says: the event is a dead letter already."""
        run, made = run_until_known(self._chain, self._structures, lambda run: list(run.blocks(iter([block]))))
        for count in run.counts:
            if count.skipped:
                raise ProcessingError(
                    {int(block.offsets()[0]): "it failed, and on_error is skip"}, where=f'processor "{count.processor}"'
                )
        return made

    @contextmanager
    def processed(self, captured: Delivery) -> Iterator[Delivery]:
        """The delivery as the stream would hand it to a sink: without what a processor skips. `ProcessingError` for an
        event that would become a dead letter."""
        if self._changes_nothing:
            yield captured
            return
        with ExitStack() as held:

            def fill(run: ChainRun) -> Spool:
                held.close()  # of the pass before
                spool = held.enter_context(Spool())
                spool.fill(run.blocks(iter(captured)))
                return spool

            run, spool = run_until_known(self._chain, self._structures, fill)
            run.report()
            newest = captured.newest and self.structure(captured.newest)
            yield replace(captured, blocks=spool.blocks, newest=newest)

    def structure(self, newest: Table) -> Table:
        """The newest structure of a table as sinks have it."""
        return self._chain.begin(self._structures.load()).structure(newest)

    def close(self) -> None:
        self._chain.close()
