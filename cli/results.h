// docs/results.json: the JSON Schema of every object that a command prints with --json. Its definitions are made by
// tests/results/results_document.cpp from the fields that the code names where it prints them (base/fields.h).
#pragma once

#include <string>
#include <vector>

#include "base/field_schema.h"

namespace specdec::cli {

class Results {
 public:
  // The commands and exit codes with which a definition is printed.
  struct Use {
    std::vector<std::string> commands = {};       // empty: a part of another definition, or the content of a file
    std::vector<int> exit_codes = {};             // exit codes in addition to 0 and those of verdicts
    std::vector<std::string> without_flags = {};  // flags with which the command prints something else
  };
  // Adds the definitions of an object and its parts. The name of a definition can depend on the object's value.
  template <Visited T>
  void add(T result, const Use& use) {
    add([&](Fields& f) { visit_fields(f, result); }, use);
  }
  template <Visited T>
  void add(const Use& use) {
    add(T(), use);
  }
  template <Visited T>
  void add() {
    add(T(), Use());
  }
  const OrderedJson& definitions() const { return definitions_.json(); }

 private:
  void add(FunctionRef<void(Fields&)> visit, const Use& use);
  Definitions definitions_;
};

// Each of these functions is defined in the file of the command that it describes.
void describe_baseline_result(Results& results);
void describe_commands(Results& results);
void describe_data_results(Results& results);
void describe_demo_result(Results& results);
void describe_doctor_result(Results& results);
void describe_export_result(Results& results);
void describe_fetch_result(Results& results);
void describe_init_result(Results& results);
void describe_loop_results(Results& results);
void describe_package_results(Results& results);
void describe_past_results(Results& results);
void describe_store_results(Results& results);
void describe_transfer_results(Results& results);

// Returns the text of docs/results.json.
std::string results_document();

}  // namespace specdec::cli
