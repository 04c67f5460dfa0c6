"""What /generate answers: a `Snapshot` in SGLang's shape."""

from __future__ import annotations

from typing import Any

from agentrl.inference.embedded.sequence import End, Snapshot


def generation(snapshot: Snapshot, *, return_logprob: bool) -> dict[str, Any]:
    """`{output_ids, meta_info}`. There is no `text`: like SGLang without its tokenizer."""
    meta: dict[str, Any] = {
        "id": snapshot.rid,
        "finish_reason": _finish_reason(snapshot),
        "prompt_tokens": snapshot.num_prompt,
        "completion_tokens": len(snapshot.output_ids),
        "cached_tokens": snapshot.cached_tokens,
        "num_retractions": snapshot.num_retractions,
        "weight_version": snapshot.weight_version,
        "queue_time": snapshot.queue_s,
        "e2e_latency": snapshot.latency_s,
    }
    if snapshot.end is not None:
        meta["weight_versions"] = [
            {"version": version, "start": start, "end": end} for version, start, end in snapshot.spans
        ]
    if return_logprob:
        pairs = zip(snapshot.logprobs, snapshot.output_ids, strict=True)
        meta["output_token_logprobs"] = [(logprob, token, None) for logprob, token in pairs]
    return {"output_ids": snapshot.output_ids, "meta_info": meta}


def _finish_reason(snapshot: Snapshot) -> dict[str, Any] | None:
    match snapshot.end:
        case None:
            return None
        case End.STOP:
            return {"type": "stop", "matched": snapshot.output_ids[-1]}
        case End.LENGTH:
            return {"type": "length", "length": len(snapshot.output_ids)}
        case _:
            return {"type": str(snapshot.end), "message": snapshot.reason}
