// Runs `specdec data label` and prints its result.
#pragma once

#include <string>

#include "cli/command.h"
#include "distill/labels/label_options.h"

namespace specdec::cli {

void add_label(Cli& cli, CLI::App& data);

// Labels the rows through an endpoint. It needs no LibTorch, so both `specdec` and `specdec-engine` can run it.
int run_label_endpoint(const Global& global, const distill::LabelOptions& options);
// Prints the result of labelling by an endpoint or by a local model: a few lines, or one JSON object.
void print_labels(const Global& global, const distill::LabelOptions& options, const distill::LabelResult& result,
                  double seconds);

}  // namespace specdec::cli
