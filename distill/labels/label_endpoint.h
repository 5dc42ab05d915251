// Writes labels by an OpenAI-compatible endpoint that serves the target.
#pragma once

#include <functional>

#include "distill/labels/label_options.h"

namespace specdec::distill {

// Asks options.url for the likeliest tokens at every position of every row: POST /completions with the row as token
// ids, max_tokens 0, echo, logprobs K and return_tokens_as_token_ids. Several requests run at a time; labels are
// written in the order of the data. A row that the endpoint refuses (400, 413, 422) gets no labels. Throws what
// LabelWriter throws; Error(kUsage) for status 401, 403 and 404, and if the endpoint refuses the first rows all alike;
// Error(kData) for replies without token ids or with other tokens than the row's; Error(kNetwork) if the endpoint is
// down or a stop is requested: --resume goes on with the labels that are complete. `sleep` replaces the waiting between
// attempts (tests).
LabelResult label_by_endpoint(const LabelOptions& options, const ProgressFn& progress,
                              const std::function<void(double)>& sleep = {});

// Returns whether options.out has labels for all rows, so that the endpoint need not be asked again. Throws
// Error(kUsage) if the labels have another K or are of another model than the options ask for; a K of 0 and the model
// "" accept any.
bool has_labels(const LabelOptions& options);

}  // namespace specdec::distill
