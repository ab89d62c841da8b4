"""The embedded engine: a Hugging Face Qwen2 or Qwen2.5-VL checkpoint served on the CPU, as SGLang and vLLM serve it.

    protocol.py       a request body → the sequences to run, or why not; a finished sequence → a response item
    refusals.py       why not, in the engine's words
    media.py          which images of a body belong to which prompt
    images.py         an image off the wire → patches in the place of its placeholder
    sampling.py       logits → tokens and log-probs, reproducible whatever else is in the batch
    model.py          the forward pass over a slab of key-value rows
    prefix_cache.py   prompts computed before
    features.py       images encoded before, and where they stand in a pass
    recently_used.py  what images are kept in
    rows.py           the table of running sequences
    scheduler.py      continuous batching: one thread that owns model, slab and cache
    served.py         one checkpoint over the scheduler
    server.py         SGLang's endpoints over HTTP
    vllm.py           vLLM's endpoints beside them

Seeded sampling is batch-invariant: with `sampling_seed`, a response depends on the prompt, the weights, the seed and
the sampling parameters alone. Sample i (from 0) of a request with n > 1 takes the seed + i.
"""
