// `specdec data label`, and what it prints.
#pragma once

#include <string>

#include "cli/command.h"
#include "distill/labels/label_options.h"

namespace specdec::cli {

void add_label(Cli& cli, CLI::App& data);

// Labels the rows through an endpoint, in the half without LibTorch or in the other.
int run_label_endpoint(const Global& global, const distill::LabelOptions& options);
// Prints the result of either way: a few lines, or one JSON object.
void print_labels(const Global& global, const distill::LabelOptions& options, const distill::LabelResult& result,
                  double seconds);

}  // namespace specdec::cli
