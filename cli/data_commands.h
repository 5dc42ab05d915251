// What the files of `specdec data` share.
#pragma once

#include <string>

#include "base/json.h"
#include "cli/command.h"

namespace specdec {
struct ShardIndex;
}

namespace specdec::cli {

void add_regenerate(Cli& cli, CLI::App& data);

// True for the URL of an endpoint, in contrast to a MODEL.
bool names_endpoint(const std::string& text);

// Returns index.json plus the rows and tokens of each split.
Json index_json(const ShardIndex& index);
void print_json(Json result, const std::string& verdict, const std::string& started, double seconds);
// Prints the splits of index_json().
void print_splits(const Json& result, const std::string& out);

}  // namespace specdec::cli
