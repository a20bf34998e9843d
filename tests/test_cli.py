"""The command line: what it says, what it writes, and one clear line for every kind of bad input."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import kvarena
from shell_gpu.kernels import twins

ROOT = Path(__file__).parent.parent
TINY = {
    "model_type": "falcon_h1",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "mamba_d_ssm": 64,
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_n_groups": 1,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "max_position_embeddings": 4096,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A config.json of a two-layer hybrid."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(TINY))
    return path


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    """Exit code, output and errors of a command, run in this process."""
    sys.argv = ["kvarena", *map(str, words)]
    with pytest.raises(SystemExit) as left:
        kvarena.main()
    shown = capsys.readouterr()
    code = left.value.code or 0
    assert isinstance(code, int)
    return code, shown.out, shown.err


def small(config: Path) -> tuple[object, ...]:
    """Options of a load under pressure: 60 requests of 20–200 tokens in and 10–60 out, all at once, in 192 KiB."""
    rows = [f"2023-11-16 18:17:{i // 20:02d}.0,{20 + i * 37 % 181},{10 + i * 23 % 51}" for i in range(60)]
    trace = config.parent / "trace.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(rows) + "\n")
    return ("--model", config, "--memory", "192KiB", "--trace", trace, "--prefill-tokens", 256, "--running-max", 32)


@pytest.mark.parametrize("device", ["cpu", "none"])
def test_replay_writes_table_json_and_plots(capsys, tmp_path: Path, config: Path, device: str) -> None:
    """A small replay under every policy: all served, checks counted, files whole, and the bytes' equation printed."""
    out = tmp_path / "out"
    code, shown, _ = run(capsys, "replay", *small(config), "--device", device, "--verify", "--out", out)
    assert code == 0
    for policy in ("arena", "static-10", "static-90", "static-default", "padded"):
        assert policy in shown
    assert "0 violations" in shown
    assert ("frames checked =" in shown) == (device == "cpu")
    result = json.loads((out / "replay.json").read_text())
    assert not result["partial"] and len(result["policies"]) == 12
    arena = result["policies"][0]
    assert arena["completed"] == 60 and arena["violations"] == 0
    assert arena["checks_made"] == 2 * arena["steps"] and arena["plans_checked"] > arena["steps"]
    assert arena["frames_moved"] > 0 and arena["memory_bound_share"] > 0.5
    assert arena["live_share"] + arena["hole_share"] + arena["gap_share"] + arena["sink_share"] == pytest.approx(1)
    if device == "cpu":
        stamps = arena["stamps"]
        assert stamps["checked"] == stamps["pages_released"] + stamps["frames_moved"] > 0
    for name in ("memory-arena", "memory-padded", "concurrency"):
        assert (out / f"{name}.png").read_bytes().startswith(b"\x89PNG") and b"<svg" in (out / f"{name}.svg").read_bytes()
    assert not list(out.glob("*.draft"))


def test_a_real_buffer_and_none_make_the_same_decisions(capsys, tmp_path: Path, config: Path) -> None:
    """DryArena is the same door: every figure of the arena's run but wall time and memory is equal."""
    rows = []
    for device in ("cpu", "none"):
        out = tmp_path / device
        assert run(capsys, "replay", *small(config), "--device", device, "--policy", "arena", "--out", out)[0] == 0
        row = json.loads((out / "replay.json").read_text())["policies"][0]
        rows.append({name: value for name, value in row.items() if name not in ("wall", "peak_process_bytes")})
    assert rows[0] == rows[1]


def test_a_recording_can_be_inspected_at_any_step(capsys, tmp_path: Path, config: Path) -> None:
    """inspect says who holds which bytes at a step, adding up to the arena, in the middle, at the start, at the end."""
    file = tmp_path / "run.kva"
    words = ("--policy", "arena", "--device", "none", "--out", tmp_path / "out", "--record", file)
    for _ in range(2):  # a recording that is there is replaced
        assert run(capsys, "replay", *small(config), *words)[0] == 0
    for at in ((), ("--at", 0), ("--at", 40)):
        code, shown, _ = run(capsys, "inspect", file, *at)
        assert code == 0 and "= arena 196,608" in shown and "state" in shown and "sink" in shown
    assert "step 40 of" in shown


def test_a_lost_move_is_a_violation_and_exit_code_1(capsys, tmp_path: Path, config: Path, monkeypatch) -> None:
    """A device that forgets to move frames: the stamps see it, it is told, and the command fails."""
    monkeypatch.setattr(twins, "move_wave", lambda *args: None)
    words = (*small(config), "--policy", "arena", "--verify", "--out", tmp_path / "out")
    code, shown, _ = run(capsys, "replay", *words)
    assert code == kvarena.VIOLATED and "VIOLATION arena: STAMP-1" in shown


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--model", "no/such-model"), "no/such-model"),
        (("--memory", "lots"), "lots"),
        (("--memory", "64KiB"), "64KiB|65536 bytes"),
        (("--page-slots", "0"), "page"),
        (("--trace", "nothing.csv"), "nothing.csv"),
        (("--policy", "magic"), "magic"),
        (("--device", "tpu"), "tpu"),
        (("--memory", "30MiB"), "boot floor"),
        (("--requests", "0"), "requests"),
        (("--scale", "-1"), "scale"),
        (("--speed-up", "0"), "speed-up"),
        (("--step-ms", "1,2"), "1,2"),
        (("--running-max", "9999"), "budget"),
        (("--policy", "padded", "--record", "x"), "record"),
        (("--out", "/dev/null/x"), "/dev/null"),
        (("--out", "/proc/x"), "/proc"),
        (("--record", "/proc/x/y"), "/proc"),
        (("--record", "/tmp"), "folder"),
        (("--nonsense",), "nonsense"),
    ],
)
def test_bad_input_is_one_clear_line_and_exit_code_2(capsys, tmp_path: Path, words, says: str) -> None:
    """Unknown names, sizes that cannot be, unreadable files: no traceback, nothing written, exit code 2."""
    out = () if "--out" in words else ("--out", tmp_path / "out")
    code, shown, told = run(capsys, "replay", *words, *out)
    assert code == kvarena.USAGE_ERROR and shown == ""
    assert any(part in told for part in says.split("|")) and "Traceback" not in told
    if "nonsense" not in says:
        assert told.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"num_key_value_heads": 0}, "num_key_value_heads"),
        ({"head_dim": -4}, "head_dim"),
        ({"num_hidden_layers": "many"}, "num_hidden_layers"),
        ({"model_type": "abacus"}, "abacus"),
        ({"mamba_d_state": None}, "mamba_d_state"),
    ],
)
def test_a_malformed_config_names_the_field(capsys, tmp_path: Path, change: dict[str, object], says: str) -> None:
    """A missing field, zero heads, a negative size, an unknown type: the field is named, exit code 2."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps({key: value for key, value in {**TINY, **change}.items() if value is not None}))
    code, _, told = run(capsys, "replay", "--model", path, "--out", tmp_path / "out")
    assert code == kvarena.USAGE_ERROR and says in told and told.count("\n") == 1


def test_a_broken_trace_row_is_named(capsys, tmp_path: Path, config: Path) -> None:
    """A trace with a broken row: file, row number and field in one line, exit code 2."""
    trace = tmp_path / "t.csv"
    trace.write_text("TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9,12,x\n")
    code, _, told = run(capsys, "replay", "--model", config, "--trace", trace, "--out", tmp_path / "out")
    assert code == kvarena.USAGE_ERROR and f"{trace}, row 2: GeneratedTokens" in told


@pytest.mark.parametrize("content", [b"", b"something else", b"kvarena-recording 1\n{}\n", None])
def test_a_damaged_recording_is_refused(capsys, tmp_path: Path, content: bytes | None) -> None:
    """An empty, foreign, damaged or missing recording is one line naming the file, exit code 2."""
    file = tmp_path / "run.kva"
    if content is not None:
        file.write_bytes(content)
    code, _, told = run(capsys, "inspect", file)
    assert code == kvarena.USAGE_ERROR and str(file) in told and "Traceback" not in told


def test_a_recording_of_another_layout_is_refused(capsys, tmp_path: Path, config: Path) -> None:
    """Events under another arena's header, or with a page of no band: one line with file and event, exit code 2."""
    file = tmp_path / "run.kva"
    words = ("--policy", "arena", "--device", "none", "--out", tmp_path / "out", "--record", file)
    run(capsys, "replay", *small(config), *words)
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b"196608", b"131072"))
    code, shown, told = run(capsys, "inspect", file)
    assert code == kvarena.USAGE_ERROR and shown == ""
    assert f"{file}: event" in told and told.count("\n") == 1


def test_a_step_beyond_the_recording_is_refused(capsys, tmp_path: Path, config: Path) -> None:
    """--at past the end says which steps there are."""
    file = tmp_path / "run.kva"
    words = ("--policy", "arena", "--device", "none", "--out", tmp_path / "out", "--record", file)
    run(capsys, "replay", *small(config), *words)
    code, _, told = run(capsys, "inspect", file, "--at", 10**6)
    assert code == kvarena.USAGE_ERROR and "steps 0 to" in told


INTERRUPTS_ITSELF = """
import os, signal, sys
import kvarena, models.stamps
signal.signal(signal.SIGINT, signal.default_int_handler)
plain, plans = models.stamps.Stamper.before, []
def before(self, state, plan):
    plain(self, state, plan)
    if len(plan.rows):
        plans.append(plan)
        if len(plans) == 40:
            os.kill(os.getpid(), signal.SIGINT)
models.stamps.Stamper.before = before
sys.argv = ["kvarena", *sys.argv[1:]]
kvarena.main()
"""


def test_an_interrupt_writes_partial_results(tmp_path: Path, config: Path) -> None:
    """Ctrl-C in the middle of a plan: the step ends, exit code 130, a whole replay.json marked partial, and figures that agree."""
    out, file = tmp_path / "out", tmp_path / "run.kva"
    words = ("replay", *small(config), "--verify", "--out", out, "--record", file)
    command = [sys.executable, "-c", INTERRUPTS_ITSELF, *map(str, words)]
    left = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert left.returncode == kvarena.INTERRUPTED, left.stderr
    assert "results are partial" in left.stdout and "Traceback" not in left.stderr
    result = json.loads((out / "replay.json").read_text())
    assert result["partial"] and len(result["policies"]) == 1
    arena = result["policies"][0]
    assert arena["partial"] and arena["steps"] >= 20 and arena["completed"] < 60
    stamps = arena["stamps"]
    assert stamps["checked"] == stamps["pages_released"] + stamps["frames_moved"] > 0
    assert file.exists()


def test_public_names_are_these() -> None:
    """The library's public names, listed once, are all there; an unknown one is an AttributeError."""
    for name in kvarena.PUBLIC:
        assert getattr(kvarena, name) is not None
    with pytest.raises(AttributeError):
        _ = kvarena.nothing


def test_importing_the_command_line_is_light() -> None:
    """Importing kvarena, and replaying without a buffer, pulls in neither torch nor triton nor transformers."""
    code = (
        "import sys, kvarena, models.replay, models.dry, models.architectures, models.inspection;"
        "print(sorted({'torch', 'triton', 'transformers'} & set(sys.modules)))"
    )
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"


def test_the_readme_example_runs() -> None:
    """The library example of the README is executed as it stands there."""
    blocks = (ROOT / "README.md").read_text().split("```python\n")[1:]
    assert len(blocks) == 1
    exec(compile(blocks[0].split("```")[0], "README.md", "exec"), {})
