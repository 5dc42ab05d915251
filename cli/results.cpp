#include "cli/results.h"

#include "base/schema/label_index.h"
#include "base/schema/shard_index.h"
#include "base/schema/validation_report.h"
#include "data/shards/ingest_report.h"

namespace specdec::cli {

namespace {

const char kDescription[] =
    "One definition for each object that a command prints with --json, and for its parts. x-commands names the "
    "commands that print it. They end with 0 or a verdict's exit code (3, 4, 5, 6), and with those of x-exit-codes. "
    "x-without-flags names flags that change what is printed. Unknown properties may be added in the same version. The "
    "Python package is generated from this file.";

// One property a line.
std::string definition_text(const OrderedJson& definition) {
  std::string text = "{";
  for (const auto& [key, value] : definition.items()) {
    text += (text == "{" ? "\n      " : ",\n      ") + OrderedJson(key).dump() + ": ";
    if (key != "properties") {
      text += value.dump();
      continue;
    }
    std::string properties;
    for (const auto& [name, property] : value.items())
      properties +=
          (properties.empty() ? "\n        " : ",\n        ") + OrderedJson(name).dump() + ": " + property.dump();
    text += "{" + properties + "\n      }";
  }
  return text + "\n    }";
}

}  // namespace

void Results::add(FunctionRef<void(Fields&)> visit, const Use& use) {
  OrderedJson& definition = definitions_.add(visit);
  OrderedJson named = {{"type", "object"}, {"description", definition["description"]}};
  if (!use.commands.empty()) named["x-commands"] = use.commands;
  if (!use.exit_codes.empty()) named["x-exit-codes"] = use.exit_codes;
  if (!use.without_flags.empty()) named["x-without-flags"] = use.without_flags;
  named["properties"] = std::move(definition["properties"]);
  named["required"] = std::move(definition["required"]);
  definition = std::move(named);
}

std::string results_document(const OrderedJson& by_hand) {
  Results results;
  results.add<ValidationReport>({.commands = {"validate"}});
  results.add<LabelShard>();
  results.add<ShardSource>();
  results.add<ShardFile>();
  results.add<data::SourceCounts>();
  results.add<data::IngestReport>();
  describe_package_results(results);
  describe_store_results(results);
  describe_transfer_results(results);
  OrderedJson all = results.definitions();
  for (const auto& [name, definition] : by_hand.items()) {
    if (all.contains(name)) throw Error(ErrorKind::kInternal, name + " is made and written by hand");
    all[name] = definition;
  }
  std::string definitions;
  for (const auto& [name, definition] : all.items())
    definitions +=
        (definitions.empty() ? "\n    " : ",\n    ") + OrderedJson(name).dump() + ": " + definition_text(definition);
  return "{\n  \"$schema\": \"https://json-schema.org/draft/2020-12/schema\",\n"
         "  \"title\": \"Results of specdec --json\",\n  \"description\": " +
         OrderedJson(kDescription).dump() + ",\n  \"$defs\": {" + definitions + "\n  }\n}\n";
}

}  // namespace specdec::cli
