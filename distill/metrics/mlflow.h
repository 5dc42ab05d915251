// Sends the metrics of a training run to an MLflow tracking server, by its REST API (MLflow 2 and 3).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/secret.h"
#include "distill/metrics/metric_sink.h"

namespace specdec::distill {

struct MlflowOptions {
  std::string uri;         // http(s)://host[:port][/path]
  std::string experiment;  // made if the server has none of this name
  std::string run_name;
  // The id of the server's run is kept in this file, so that a resumed run goes on in it.
  std::filesystem::path run_file;
  std::vector<std::pair<std::string, std::string>> params;  // at most 100; values are cut to 500 bytes
  Secret token;                                             // "" = none
  Secret user, password;                                    // of basic authentication; "" = none
  double timeout_s = 20;                                    // of one request
  double close_s = 30;                                      // finish() waits this long at most
  double retry_s = 15;                                      // between attempts while the server does not answer
  size_t queue_points = 20000;                              // values that wait; more are dropped
};
// Takes token, user and password from MLFLOW_TRACKING_TOKEN, MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, as
// MLflow's own client does. Throws Error(kUsage) if `uri` is no http(s) URL or if a secret would be sent over plain
// http to another machine.
void complete(MlflowOptions& options);

// A run on the server. All requests are made by a thread of its own. A server that does not answer costs one warning,
// and the values that no longer fit into the queue: it never stops or slows the training.
class MlflowRun final : public MetricSink {
 public:
  explicit MlflowRun(MlflowOptions options);  // returns at once
  // Ends the run as FAILED, unless finish() was called or a signal stops the process: then it may be resumed.
  ~MlflowRun() override;

  void take(int64_t unix_seconds, int64_t step, const std::vector<std::pair<std::string, double>>& values) override;
  // Ends the run as FINISHED with these tags. Waits until the server has everything, at most `close_s`, and not at
  // all if its last answer was an error.
  void finish(int64_t unix_seconds, const std::vector<std::pair<std::string, std::string>>& tags);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace specdec::distill
