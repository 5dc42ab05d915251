// Options and results of `specdec data label`, which writes labels (the target's top-k log-probabilities or hidden
// states) for a data directory (base/schema/label_index.h).
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/progress.h"
#include "base/run_options.h"
#include "base/schema/label_index.h"
#include "base/secret.h"

namespace specdec::data {
class ShardReader;
}

namespace specdec::distill {

struct LabelOptions {
  std::string data, out;
  std::string target;  // directory of the target; may be "" if `url` is set
  std::string url;     // http(s)://host[:port][/v1]; "" = run the target in this process
  std::string model;   // name of the model at the endpoint; "" = the first of /v1/models
  Secret api_key;
  int64_t top_k = 0;       // tokens per position; 0 = 32, or 20 with an endpoint, because servers often allow no more
  bool hidden = false;     // writes hidden states instead of log-probabilities; not possible with an endpoint
  double temperature = 1;  // softmax temperature of the labels; always 1 with an endpoint
  int concurrency = 4;     // number of requests at a time
  double request_timeout_s = 600;
  bool resume = false;
  DeviceOptions device;
};
void validate(const LabelOptions& options);  // throws Error(kUsage)

struct LabelResult {
  LabelIndex index;
  int64_t made = 0, kept = 0;  // rows labelled in this run, and in earlier runs
  int64_t refused = 0;         // rows of this run that the endpoint refused
};

// Returns the content of index.json for a new directory of labels: the settings of `options`, and the digests of data,
// tokenizer and target. The list of shards is empty. Throws Error(kData) if the data was tokenised with another
// tokenizer than the target's.
LabelIndex new_label_index(const LabelOptions& options, const data::ShardReader& data);

}  // namespace specdec::distill
