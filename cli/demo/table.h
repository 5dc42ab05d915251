// The table at the end of the demo compares plain decoding, the untrained draft, and the distilled draft.
#pragma once

#include <string>
#include <vector>

#include "base/fields.h"

namespace specdec::cli {

struct DemoTableRow {
  std::string name;
  double acceptance = 0;  // alpha as measured by the gate; 0 for plain decoding
  double tokens_per_second = 0, speedup = 1;
  double memory_mib = 0;  // weights and caches of the target and, if there is one, the draft
};

void visit_fields(Fields& f, DemoTableRow& row);

// One domain of the story on a model of the user's: the acceptance that the gate measured, with the ends of its
// interval and by position in the draft, and the tokens per second of single requests with and without the draft.
struct DemoDomainRow {
  std::string name;
  double acceptance = 0, low = 0, high = 0;
  std::vector<double> by_position;
  double plain_tokens_per_second = 0, tokens_per_second = 0, speedup = 1;
};
void visit_fields(Fields& f, DemoDomainRow& row);

struct StoryStep {
  std::string step;
  double seconds = 0;
  std::string text;
};
struct DemoCheck {
  std::string check;
  bool holds = false;
};
// The object that `specdec demo --json` prints.
struct DemoResult {
  bool passed = false;
  std::vector<StoryStep> story;
  std::vector<DemoCheck> checks;
  std::vector<DemoTableRow> table;
  // Only of a story on a model of the user's: the first draft with the first model, and the redistilled draft with the
  // model after its update.
  std::vector<DemoDomainRow> domains, updated_domains;
  std::string report;
};
void visit_fields(Fields& f, DemoResult& result);

// A bench result (schema specdec.bench/1) and the alpha that validate measured for the draft.
struct DemoBench {
  Json result;
  double acceptance = 0;
};
// Returns the rows of the table. Both benches must have used the same prompts.
std::vector<DemoTableRow> demo_table(const DemoBench& distilled, const DemoBench& naive);
std::string table_to_text(const std::vector<DemoTableRow>& rows);
std::string domains_to_text(const std::vector<DemoDomainRow>& rows);

}  // namespace specdec::cli
