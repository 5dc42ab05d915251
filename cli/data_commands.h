// Declarations that the files of `specdec data` share.
#pragma once

#include <cstdio>
#include <string>

#include "base/json.h"
#include "cli/command.h"
#include "cli/data_results.h"

namespace specdec::cli {

void add_regenerate(Cli& cli, CLI::App& data);

// Returns whether the text is the URL of an endpoint and not a MODEL.
bool names_endpoint(const std::string& text);

// Prints the rows and tokens of each split, and where they were written.
void print_splits(const ShardIndex& index, const std::string& out);

// Prints a result as JSON (data_results.h).
template <class T>
void print_result(T& result, const std::string& started, double seconds) {
  result.head.started = started;
  result.head.seconds = seconds;
  std::printf("%s\n", json_of(result).dump(-1, ' ', false, Json::error_handler_t::replace).c_str());
}

}  // namespace specdec::cli
