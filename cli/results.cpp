#include "cli/results.h"

#include "base/schema/distill_comparison.h"
#include "base/schema/distill_forecast.h"
#include "base/schema/error_report.h"
#include "base/schema/validation_report.h"
#include "deploy/bench/bench.h"
#include "deploy/generate/generate_command.h"
#include "engine/parallel/launch.h"
#include "monitor/check_report.h"

namespace specdec::cli {

namespace {

const char kDescription[] =
    "One definition for each object that a command prints with --json, and for its parts. x-commands names the "
    "commands that print it. They end with 0 or a verdict's exit code (3, 4, 5, 6), and with those of x-exit-codes. "
    "x-without-flags names flags that change what is printed. Unknown properties may be added in the same version. The "
    "Python package is generated from this file.";

std::string one_line_of(const OrderedJson& value) {
  if (!value.is_structured() || value.empty()) return value.dump();
  std::string text;
  for (const auto& [key, item] : value.items())
    text += (text.empty() ? "" : ", ") + (value.is_object() ? OrderedJson(key).dump() + ": " : "") + one_line_of(item);
  return value.is_object() ? "{" + text + "}" : "[" + text + "]";
}

// Returns the definition as JSON text with one line per property.
std::string definition_text(const OrderedJson& definition) {
  std::string text = "{";
  for (const auto& [key, value] : definition.items()) {
    text += (text == "{" ? "\n      " : ",\n      ") + OrderedJson(key).dump() + ": ";
    if (key != "properties") {
      text += one_line_of(value);
      continue;
    }
    std::string properties;
    for (const auto& [name, property] : value.items())
      properties +=
          (properties.empty() ? "\n        " : ",\n        ") + OrderedJson(name).dump() + ": " + one_line_of(property);
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

std::string results_document() {
  Results results;
  results.add<ErrorReport>();
  results.add<ValidationReport>({.commands = {"validate"}});
  results.add<deploy::BenchResult>({.commands = {"bench"}});
  results.add<deploy::GenerateOutput>({.commands = {"generate"}});
  results.add<parallel::Launch>();
  results.add<DistillReport>({.commands = {"distill"}, .without_flags = {"--print-launch", "--compare"}});
  results.add<ForecastReport>({.commands = {"distill"}});
  results.add<ComparisonReport>();
  describe_data_results(results);
  describe_package_results(results);
  describe_store_results(results);
  describe_transfer_results(results);
  describe_export_result(results);
  results.add<monitor::CheckReport>({.commands = {"monitor check"}});
  describe_past_results(results);
  describe_baseline_result(results);
  describe_loop_results(results);
  describe_init_result(results);
  describe_demo_result(results);
  describe_fetch_result(results);
  describe_doctor_result(results);
  describe_commands(results);
  std::string definitions;
  for (const auto& [name, definition] : results.definitions().items())
    definitions +=
        (definitions.empty() ? "\n    " : ",\n    ") + OrderedJson(name).dump() + ": " + definition_text(definition);
  return "{\n  \"$schema\": \"https://json-schema.org/draft/2020-12/schema\",\n"
         "  \"title\": \"Results of specdec --json\",\n  \"description\": " +
         OrderedJson(kDescription).dump() + ",\n  \"$defs\": {" + definitions + "\n  }\n}\n";
}

}  // namespace specdec::cli
