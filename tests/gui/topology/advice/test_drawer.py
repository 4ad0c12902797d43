"""Tests the Advice drawer: its contents, errors, the measurement, and that a recommendation is one undoable edit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
from PySide6.QtCore import QObject
from PySide6.QtWidgets import QLabel, QPushButton

from tests.core.advisor.samples import fleet, profile
from tests.gui.geometry.faults import faults_of
from tests.gui.topology.page_driver import Driver
from torchyard_core.advisor.recommendation import Advice, advise
from torchyard_core.errors import RunFailed, TorchyardError
from torchyard_core.next_steps import ProfileScript
from torchyard_core.topology.file import TopologyFile
from torchyard_core.topology.host_facts import HostFacts
from torchyard_core.topology.model import StrategyKind
from torchyard_gui.bridge.background_jobs import Job
from torchyard_gui.bridge.planner.advice_source import without_users
from torchyard_gui.topology.advice.drawer import AdviceDrawer
from torchyard_gui.widgets.next_steps import step_text


class ImmediateAdvisor:
    """Computes real advice from a sample profile, without delay. If `error` is set, requests fail with it."""

    def __init__(self) -> None:
        self.error: TorchyardError | None = None
        self.asked: list[TopologyFile] = []
        self.without_history: list[bool] = []
        self.ends: list[tuple[Callable[[str], None], Callable[[], None], Callable[[TorchyardError], None]]] = []
        self.stops = 0

    def advise(
        self,
        source: TopologyFile,
        facts: Sequence[HostFacts],
        done: Callable[[Advice], None],
        failed: Callable[[TorchyardError], None],
        owner: QObject,
        *,
        without_history: bool = False,
    ) -> Job:
        self.asked.append(source)
        self.without_history.append(without_history)
        job = Job()
        if self.error is not None:
            failed(self.error)
            return job
        assert source.topology is not None
        of = profile(kind=facts[0].gpus[0].name, is_gpu=True, compute_s=0.2)
        whole = fleet([without_users(host) for host in facts], of, mbit=10_000)
        done(advise(source.topology, whole, available=fleet(facts, of, mbit=10_000)))
        return job

    def measure(self, source: TopologyFile, say: Any, done: Any, failed: Any, owner: QObject) -> Job:
        self.ends.append((say, done, failed))
        return Job()

    def stop_measuring(self) -> None:
        self.stops += 1


@pytest.fixture
def advisor(digits: Driver) -> ImmediateAdvisor:
    made = ImmediateAdvisor()
    digits.page.advisor = made
    return made


def opened(driver: Driver) -> AdviceDrawer:
    driver.page.show_advice.trigger()
    driver.qtbot.waitUntil(lambda: driver.page.advice.advice is not None)
    return driver.page.advice


def test_new_advice_is_laid_out_at_once(digits: Driver, advisor: ImmediateAdvisor) -> None:
    advisor.error = RunFailed("train.py was never profiled on this computer.")
    digits.page.show_advice.trigger()
    drawer = digits.page.advice
    digits.wait_until(lambda: "never profiled" in texts(drawer) and not faults_of(drawer))
    advisor.error = None
    drawer.refresh()
    assert not faults_of(drawer), "no event has been processed since the cards were made"


def texts(drawer: AdviceDrawer) -> str:
    return "\n".join(each.text() for each in drawer.findChildren(QLabel) if each.isVisible())


def test_advice_shows_recommendations_the_curve_and_the_best_of_each_strategy(
    digits: Driver, advisor: ImmediateAdvisor
) -> None:
    drawer = opened(digits)
    assert drawer.advice is not None
    assert "topologies were considered" in drawer.message.text()
    assert drawer.advice.fastest.title in texts(drawer)
    assert drawer.curve.isVisible()
    assert "workers: " in drawer.curve.accessibleDescription()
    shown = [drawer.table.item(row, 0).text() for row in range(drawer.table.rowCount())]
    assert len(shown) == 6
    assert any(text.startswith("Downpour") and text.endswith("*") for text in shown)
    row = next(row for row, text in enumerate(shown) if text.endswith("*"))
    drawer.table.selectRow(row)
    assert "changes the result of training" in drawer.details.text()
    # GPU gpu-b:3 is in use by another user.
    assert drawer.advice.available is not None
    assert drawer.advice.available.counts.trainers < drawer.advice.fastest.counts.trainers


def test_a_recommendation_is_applied_as_one_undoable_edit(digits: Driver, advisor: ImmediateAdvisor) -> None:
    drawer = opened(digits)
    assert drawer.advice is not None
    before, wanted = digits.value, drawer.advice.fastest
    assert before != wanted.topology
    button = next(each for each in drawer.cards[0].findChildren(QPushButton))
    button.click()
    assert digits.value == wanted.topology
    assert digits.undo_text() == wanted.title
    digits.page.editor.undo()
    assert digits.value == before

    row = next(number for number, each in enumerate(drawer.advice.alternatives) if each.changes_result)
    kind = drawer.advice.alternatives[row].counts.kind
    drawer.table.selectRow(row)
    drawer.apply.click()
    assert digits.value.strategy.kind is kind


def test_an_edit_of_the_topology_makes_the_advice_anew_while_the_drawer_is_open(
    digits: Driver, advisor: ImmediateAdvisor
) -> None:
    opened(digits)
    count = len(advisor.asked)
    digits.page.editor.set_strategy("kind", StrategyKind.SANDBLASTER.value, label="strategy")
    digits.qtbot.waitUntil(lambda: len(advisor.asked) > count)
    asked = advisor.asked[-1].topology
    assert asked is not None
    assert asked.strategy.kind is StrategyKind.SANDBLASTER
    digits.page.advice.closed.emit()
    assert not digits.page.advice.isVisible()
    assert not digits.page.show_advice.isChecked()
    assert digits.page.view.hasFocus()


def test_past_runs_can_be_ignored(digits: Driver, advisor: ImmediateAdvisor) -> None:
    drawer = opened(digits)
    assert drawer.with_history.isVisible()
    assert advisor.without_history == [False]
    drawer.with_history.click()
    assert advisor.without_history == [False, True]
    drawer.with_history.click()
    assert advisor.without_history[-1] is False


def test_an_error_replaces_the_advice_with_what_to_do(digits: Driver, advisor: ImmediateAdvisor) -> None:
    advisor.error = RunFailed("train.py was never profiled on this computer.", hint=ProfileScript("a.yaml"))
    digits.page.show_advice.trigger()
    drawer = digits.page.advice
    digits.qtbot.waitUntil(lambda: "never profiled" in drawer.message.text())
    expected = "train.py was never profiled on this computer. Press “Profile” above to measure its steps."
    assert drawer.message.text() == expected
    assert "Topology page" in step_text(ProfileScript("a.yaml")), "elsewhere, the text says where the button is"
    assert not drawer.table.isVisible()


def test_profile_measures_the_script_and_then_predicts(digits: Driver, advisor: ImmediateAdvisor) -> None:
    drawer = opened(digits)
    drawer.profile.click()
    say, _, failed = advisor.ends[-1]
    assert drawer.stop.isVisible()
    assert not drawer.profile.isEnabled()
    say("Measuring on gpu-a …")
    assert drawer.message.text() == "Measuring on gpu-a …"
    drawer.stop.click()
    assert advisor.stops == 1
    drawer._measuring.finish()
    failed(RunFailed("the measurement was stopped."))
    assert drawer.message.text() == "The measurement was stopped."
    assert drawer.profile.isEnabled()

    count = len(advisor.asked)
    digits.page.profile()
    drawer._measuring.finish()
    advisor.ends[-1][1]()
    assert len(advisor.asked) == count + 1
    assert not drawer.stop.isVisible()
