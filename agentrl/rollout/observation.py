"""What the agent is shown of a command's result."""

from __future__ import annotations

from agentrl.sandbox.provider import ExecResult


def observe(result: ExecResult, *, limit_chars: int, timeout_s: float) -> str:
    """The result as text: output (stdout, then stderr), then what else the agent needs to know, one line each."""
    text = (result.stdout + result.stderr).decode("utf-8", errors="replace").rstrip("\n")
    lines = [cut_middle(text, limit_chars)] if text else []
    if result.truncated:
        lines.append(f"(output of {result.bytes_total} bytes was cut)")
    if result.timed_out:
        lines.append(f"(killed after {timeout_s:g} s)")
    elif result.oom:
        lines.append("(killed: out of memory)")
    elif result.exit_code is None:
        lines.append(f"(killed by signal {result.signal})")
    elif result.exit_code != 0:
        lines.append(f"(exit code {result.exit_code})")
    if result.shell_reset:
        lines.append("(the shell was lost; the next command starts from the folder and variables before this one)")
    return "\n".join(lines) or "(no output)"


def cut_middle(text: str, limit_chars: int) -> str:
    """Keep head and tail of a long text and say how much is missing between them."""
    if len(text) <= limit_chars:
        return text
    tail = limit_chars // 2
    head = limit_chars - tail
    return f"{text[:head]}\n(... {len(text) - limit_chars} characters cut ...)\n{text[-tail:] if tail else ''}"
