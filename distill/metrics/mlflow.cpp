#include "distill/metrics/mlflow.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <thread>

#include "base/file.h"
#include "base/log.h"
#include "base/progress.h"
#include "net/http_client.h"

namespace specdec::distill {

namespace {

// Limits of one request to runs/log-batch.
constexpr size_t kBatchMetrics = 1000, kBatchParams = 100, kMaxParamBytes = 500;

Secret from_environment(const char* name) {
  const char* value = std::getenv(name);
  return value ? Secret(value) : Secret();
}

// Cuts between characters of UTF-8.
std::string cut_text(const std::string& text, size_t max_bytes) {
  if (text.size() <= max_bytes) return text;
  size_t end = max_bytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  return text.substr(0, end);
}

Json key_values(const std::vector<std::pair<std::string, std::string>>& pairs) {
  Json out = Json::array();
  for (const auto& [key, value] : pairs) out.push_back({{"key", key}, {"value", cut_text(value, kMaxParamBytes)}});
  return out;
}

}  // namespace

void complete(MlflowOptions& o) {
  o.uri = net::base_url(o.uri, "--mlflow", "MLFLOW_TRACKING_TOKEN, or MLFLOW_TRACKING_USERNAME and _PASSWORD");
  o.token = from_environment("MLFLOW_TRACKING_TOKEN");
  o.user = from_environment("MLFLOW_TRACKING_USERNAME");
  o.password = from_environment("MLFLOW_TRACKING_PASSWORD");
  const bool has_secret = !o.token.empty() || !o.user.empty() || !o.password.empty();
  if (has_secret && !net::keeps_secrets(o.uri))
    throw Error(ErrorKind::kUsage, "--mlflow " + o.uri +
                                       ": the secret of MLFLOW_TRACKING_… is not sent over plain http to another "
                                       "machine: use https, or unset it");
}

struct MlflowRun::Impl {
  struct MetricPoint {
    std::string key;
    double value;
    int64_t unix_seconds, step;
  };

  explicit Impl(MlflowOptions given) : options(std::move(given)), thread([this] { work(); }) {}

  // What the caller and the thread share.
  std::mutex mutex;
  std::condition_variable changed, idle;
  std::deque<MetricPoint> queue;
  std::vector<std::pair<std::string, std::string>> tags;
  std::string status;  // how the run ended; "" = it goes on
  int64_t end_seconds = 0, dropped = 0;
  bool failing = false;    // the last request failed
  bool abandoned = false;  // the thread ends without waiting for the server
  bool done = false;       // the thread has nothing more to do

  const MlflowOptions options;
  net::HttpClient client;  // of the thread, as everything below
  std::string run_id;
  std::thread thread;

  std::string url(const std::string& path) const {
    const std::string base = options.uri + "/api/2.0/mlflow/" + path;
    if (options.user.empty() || !options.token.empty()) return base;
    const size_t host = base.find("://") + 3;
    return base.substr(0, host) + net::percent_encoded(options.user.reveal(), false) + ":" +
           net::percent_encoded(options.password.reveal(), false) + "@" + base.substr(host);
  }

  // Makes one request. Throws Error(kNetwork) for any status but 200 and those of `allowed`.
  Json call(const std::string& path, const Json* body, long allowed = 200) {
    const std::string text = body ? body->dump(-1, ' ', false, Json::error_handler_t::replace) : "";
    net::HttpRequest request;
    request.url = url(path);
    request.post = body ? &text : nullptr;
    request.bearer = options.token;
    request.timeout_s = request.connect_timeout_s = options.timeout_s;
    request.max_body_bytes = size_t{1} << 20;
    const net::HttpReply reply = client.once(request);
    if (!reply.problem.empty()) throw Error(ErrorKind::kNetwork, reply.problem);
    if (reply.status != 200 && reply.status != allowed)
      throw Error(ErrorKind::kNetwork, path.substr(0, path.find('?')) + ": HTTP " + std::to_string(reply.status));
    return reply.status == 200 && !reply.body.empty() ? parse_json(reply.body, path) : Json();
  }

  std::string experiment_id() {
    const Json found = call(
        "experiments/get-by-name?experiment_name=" + net::percent_encoded(options.experiment, false), nullptr, 404);
    if (found.is_object())
      return json_string(json_object(found, "experiment", 64, "experiment", ErrorKind::kNetwork), "experiment_id",
                         "experiment", ErrorKind::kNetwork);
    const Json body = {{"name", options.experiment}};
    return json_string(call("experiments/create", &body), "experiment_id", "experiment", ErrorKind::kNetwork);
  }

  // Opens the run of an earlier process, or makes one.
  void open(int64_t unix_seconds) {
    if (std::filesystem::exists(options.run_file)) {
      const Json kept = read_json(options.run_file);
      if (kept.value("uri", "") == options.uri) {
        const std::string id = kept.value("run_id", "");
        const Json body = {{"run_id", id}, {"status", "RUNNING"}};
        call("runs/update", &body);
        run_id = id;
        return;
      }
    }
    const Json body = {{"experiment_id", experiment_id()},
                       {"start_time", unix_seconds * 1000},
                       {"run_name", options.run_name},
                       {"tags", key_values({{"mlflow.source.name", "specdec distill"}})}};
    const Json made = call("runs/create", &body);
    const Json& run = json_object(made, "run", 64, "run", ErrorKind::kNetwork);
    run_id = json_string(json_object(run, "info", 64, "run", ErrorKind::kNetwork), "run_id", "run.info",
                         ErrorKind::kNetwork);
    write_file_atomic(options.run_file, Json({{"uri", options.uri}, {"run_id", run_id}}).dump() + "\n");
    std::vector<std::pair<std::string, std::string>> params = options.params;
    params.resize(std::min(params.size(), kBatchParams));
    const Json batch = {{"run_id", run_id}, {"params", key_values(params)}};
    call("runs/log-batch", &batch);
  }

  void send(const std::vector<MetricPoint>& points) {
    if (run_id.empty()) open(points.empty() ? end_seconds : points.front().unix_seconds);
    if (points.empty()) return;
    Json metrics = Json::array();
    for (const MetricPoint& p : points)
      metrics.push_back({{"key", p.key}, {"value", p.value}, {"timestamp", p.unix_seconds * 1000}, {"step", p.step}});
    const Json batch = {{"run_id", run_id}, {"metrics", metrics}};
    call("runs/log-batch", &batch);
  }

  void end() {
    if (!tags.empty()) {
      const Json batch = {{"run_id", run_id}, {"tags", key_values(tags)}};
      call("runs/log-batch", &batch);
    }
    const Json body = {{"run_id", run_id}, {"status", status}, {"end_time", end_seconds * 1000}};
    call("runs/update", &body);
  }

  // Waits for values and sends them, until the run has ended and everything is sent, or nobody waits any more.
  void work() {
    std::unique_lock lock(mutex);
    bool warned = false;
    while (!done) {
      changed.wait(lock, [&] { return !queue.empty() || !status.empty() || abandoned; });
      const size_t count = std::min(queue.size(), kBatchMetrics);
      const std::vector<MetricPoint> points(queue.begin(), queue.begin() + static_cast<std::ptrdiff_t>(count));
      const bool last = count == queue.size() && !status.empty();
      std::string problem;
      if (abandoned) break;
      lock.unlock();
      try {
        send(points);
        if (last) end();
      } catch (const std::exception& e) {
        problem = e.what();
      }
      lock.lock();
      failing = !problem.empty();
      if (!failing) {
        queue.erase(queue.begin(), queue.begin() + static_cast<std::ptrdiff_t>(std::min(count, queue.size())));
        done = last;
        continue;
      }
      if (!warned && !stop_requested())
        log(LogLevel::kWarn, "--mlflow " + options.uri + ": " + problem +
                                 ": the training goes on, and RUN/metrics.jsonl has all values");
      warned = true;
      idle.notify_all();
      changed.wait_for(lock, std::chrono::duration<double>(options.retry_s), [&] { return abandoned; });
    }
    done = true;
    idle.notify_all();
  }

  void close(const std::string& how, int64_t unix_seconds) {
    {
      std::unique_lock lock(mutex);
      if (status.empty()) status = how, end_seconds = unix_seconds;
      changed.notify_all();
      idle.wait_for(lock, std::chrono::duration<double>(options.close_s), [&] { return done || failing; });
      abandoned = true;
      changed.notify_all();
      if (dropped > 0 || !queue.empty())
        log(LogLevel::kWarn, "--mlflow " + options.uri + ": " +
                                 std::to_string(dropped + static_cast<int64_t>(queue.size())) +
                                 " values did not arrive; RUN/metrics.jsonl has all of them");
    }
    if (thread.joinable()) thread.join();
  }
};

MlflowRun::MlflowRun(MlflowOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}

MlflowRun::~MlflowRun() {
  if (!impl_->thread.joinable()) return;
  if (stop_requested()) {
    {
      const std::lock_guard lock(impl_->mutex);
      impl_->abandoned = true;
      impl_->changed.notify_all();
    }
    impl_->thread.join();
    return;
  }
  impl_->close(
      "FAILED",
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count());
}

void MlflowRun::take(int64_t unix_seconds, int64_t step, const std::vector<std::pair<std::string, double>>& values) {
  const std::lock_guard lock(impl_->mutex);
  for (const auto& [key, value] : values) {
    if (!std::isfinite(value)) continue;
    if (impl_->queue.size() >= impl_->options.queue_points)
      ++impl_->dropped;
    else
      impl_->queue.push_back({key, value, unix_seconds, step});
  }
  impl_->changed.notify_all();
}

void MlflowRun::finish(int64_t unix_seconds, const std::vector<std::pair<std::string, std::string>>& tags) {
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->tags = tags;
  }
  impl_->close("FINISHED", unix_seconds);
}

}  // namespace specdec::distill
