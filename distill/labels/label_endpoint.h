// Writes labels (top-k log-probabilities of the target) that an OpenAI-compatible endpoint computes.
#pragma once

#include <functional>

#include "distill/labels/label_options.h"

namespace specdec::distill {

// Writes labels that the endpoint options.url computes: the likeliest tokens at every position of every row. Each
// request is POST /completions with the row as token ids, max_tokens 0, echo, logprobs K and
// return_tokens_as_token_ids. Several requests run at a time; labels are written in the order of the data. A row that
// the endpoint refuses (400, 413, 422) gets no labels. A later run with --resume keeps the labels written so far.
// `sleep` waits between attempts; tests replace it.
// Throws what LabelWriter throws; Error(kUsage) for status 401, 403 and 404, and if the endpoint refuses each of the
// first rows; Error(kData) for replies without token ids or with other tokens than the row's; Error(kNetwork), which
// means "run it again", if the endpoint is down or a stop is requested.
LabelResult label_by_endpoint(const LabelOptions& options, const ProgressFn& progress,
                              const std::function<void(double)>& sleep = {});

// Returns whether options.out has labels for all rows, so that no more requests are needed. Throws Error(kUsage) if the
// labels have another K or another model than `options`. In `options`, K = 0 accepts any K, and model "" accepts any
// model.
bool has_labels(const LabelOptions& options);

}  // namespace specdec::distill
