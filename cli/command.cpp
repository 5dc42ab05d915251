#include "cli/command.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/format.h"
#include "base/log.h"
#include "base/sampling_ranges.h"
#include "cli/log.h"
#include "cli/progress_line.h"
#include "net/http_client.h"

namespace specdec::cli {

namespace {

// Returns a CLI11 check that fails with `expected` unless `holds` is true for the number. The check accepts text that
// is not a number, because CLI11's conversion then fails with a message of its own.
std::function<std::string(const std::string&)> number_check(const std::string& expected,
                                                            const std::function<bool(double)>& holds) {
  return [expected, holds](const std::string& text) -> std::string {
    char* end = nullptr;
    const double value = std::strtod(text.c_str(), &end);
    if (end == text.c_str() || *end != '\0' || holds(value)) return "";
    return "expected " + expected + ", found " + text;
  };
}

// Checks the text of a seed before CLI11 converts it. CLI11 would read "-1", and every number above 2^64 - 1, as 2^64 -
// 1.
std::string check_seed(const std::string& text) {
  char* end = nullptr;
  errno = 0;
  std::strtoull(text.c_str(), &end, 0);
  if (!text.empty() && *end == '\0' && errno == 0 && text.find('-') == std::string::npos) return "";
  return "expected an integer from 0 to 18446744073709551615, found '" + text + "'";
}

}  // namespace

std::function<std::string(const std::string&)> at_least(double least) {
  return number_check("a number >= " + number_text(least), [least](double value) { return value >= least; });
}
std::function<std::string(const std::string&)> more_than(double least) {
  return number_check("a number > " + number_text(least), [least](double value) { return value > least; });
}

CLI::Validator within(double low, double high) {
  const NumberRange range{.low = low, .high = high};
  const auto check = number_check(range.text(), [range](double value) { return range.contains(value); });
  return {[check](const std::string& text) { return check(text); }, number_text(low) + " to " + number_text(high), ""};
}

CLI::Option* add_seed_flag(CLI::App& sub, uint64_t& seed, const std::string& help) {
  return sub.add_option("--seed", seed, help)->capture_default_str()->check(check_seed);
}

constexpr char kTypes[] = "auto|fp32|bf16|fp16|int8";  // names the values of --dtype and --draft-dtype

void add_device_flags(CLI::App& sub, DeviceOptions& options) {
  sub.add_option("--device", options.device, "auto | cpu | cuda[:i]")
      ->type_name("auto|cpu|cuda|cuda:I")
      ->capture_default_str()
      ->group("Device");
  sub.add_option("--dtype", options.dtype,
                 "auto (the checkpoint's own; on a GPU, quantised matrices stay as they are, and on a CPU those of a "
                 "GGUF file) | fp32 | bf16 | fp16 | "
                 "int8 (weights only, for decoding)")
      ->type_name(kTypes)
      ->capture_default_str()
      ->group("Device");
  add_seed_flag(sub, options.seed, "Seed of every random choice")->group("Device");
  sub.add_option("--threads", options.threads, "CPU threads, 0 = all cores")->capture_default_str()->group("Device");
}

void add_draft_dtype_flag(CLI::App& sub, DeviceOptions& options) {
  sub.add_option(
         "--draft-dtype", options.draft_dtype,
         "dtype of the draft, with the values of --dtype; auto beside a GGUF file that keeps its blocks is int8")
      ->type_name(kTypes)
      ->default_str("as --dtype")
      ->group("Device");
}

void add_exact_flag(CLI::App& sub, DeviceOptions& options) {
  sub.add_flag(
         "--exact", options.exact,
         "On a GPU, greedy text does not depend on how many sequences run together; passes of more than 64 tokens "
         "are slower")
      ->group("Device");
}

void add_sampling_flags(CLI::App& sub, SamplingOptions& options) {
  sub.add_option("--temperature", options.temperature, "0 = greedy")->capture_default_str()->group("Sampling");
  sub.add_option("--top-k", options.top_k, "Keep the k likeliest tokens, 0 = off")
      ->capture_default_str()
      ->group("Sampling");
  sub.add_option("--top-p", options.top_p, "Keep the smallest set of tokens with this probability mass")
      ->capture_default_str()
      ->group("Sampling");
  sub.add_option("--min-p", options.min_p, "Drop tokens below this share of the likeliest one's probability")
      ->capture_default_str()
      ->group("Sampling");
}

void add_speculation_flags(CLI::App& sub, SpeculationOptions& options) {
  sub.add_option_function<std::string>(
         "--k",
         [&options](const std::string& text) {
           if (text == "auto") {
             options.k = -1;
             return;
           }
           size_t end = 0;
           int value = -1;
           try {
             value = std::stoi(text, &end);
           } catch (const std::exception&) {
             end = 0;
           }
           if (end != text.size() || value < 0)
             throw Error(ErrorKind::kUsage, "--k: expected a number >= 0 or auto, found '" + text + "'");
           options.k = value;
         },
         "Draft tokens per step: a number, 0 = plain, or auto")
      ->type_name("N|auto")
      ->default_str("auto")
      ->group("Speculation");
  add_verify_flags(sub, options);
}

void add_shape_flags(CLI::App& sub, SpeculationOptions& options) {
  sub.add_flag("--suffix,!--no-suffix", options.suffix,
               "Also draft the text that followed an earlier occurrence of the current ending: free, with or without a "
               "draft model")
      ->group("Speculation");
  sub.add_option_function<std::string>(
         "--tree", [&options](const std::string& text) { options.tree = parse_tree(text); },
         "Draft a tree: children of every node by depth, such as 2,2,1; K is then the number of levels used")
      ->type_name("N,N,...")
      ->group("Speculation");
}

void add_verify_flags(CLI::App& sub, SpeculationOptions& options) {
  sub.add_option("--max-k", options.max_k, "Upper bound for --k auto")->capture_default_str()->group("Speculation");
  sub.add_option_function<std::string>(
         "--verify", [&options](const std::string& name) { options.verify = parse_verify_rule(name); },
         "token | block | target | coupled (the text depends on the seed alone, not on draft and K)")
      ->type_name("token|block|target|coupled")
      ->default_str("token")
      ->group("Speculation");
}

namespace {

// Draws the progress that the working thread reports. A second thread redraws the line while no progress is reported.
class LiveProgress {
 public:
  LiveProgress(bool terminal, bool json)
      : line_(
            terminal, [this, json](const std::string& text) { json ? write_json(text) : write_text(text); },
            clock_.seconds()) {}
  ~LiveProgress() {
    ticker_ = {};
    line_.end();
  }

  void show(const Progress& progress) {
    const std::lock_guard lock(mutex_);
    last_ = progress;
    line_.show(progress, clock_.seconds());
    if (!ticker_.joinable()) ticker_ = std::jthread([this](const std::stop_token& stop) { tick(stop); });
  }

 private:
  void tick(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (!stop.stop_requested()) {
      line_.tick(clock_.seconds());
      wake_.wait_for(lock, stop, std::chrono::milliseconds(100), [] { return false; });
    }
  }

  static void write_text(const std::string& text) {
    std::fputs(text.c_str(), stderr);
    std::fflush(stderr);
  }
  void write_json(const std::string& text) const {
    const Json progress = {{"stage", last_.stage}, {"done", last_.done}, {"total", last_.total}, {"unit", last_.unit}};
    say(text.substr(0, text.find('\n')), LogLevel::kInfo, {{"progress", progress}});
  }

  SystemClock clock_;
  std::mutex mutex_;
  Progress last_;
  std::condition_variable_any wake_;
  ProgressLine line_;
  std::jthread ticker_;
};

}  // namespace

ProgressFn make_progress(const Global& global) {
  if (global.verbosity < 0) return {};
  const char* term = std::getenv("TERM");
  const bool json = global.log_format == "json";
  const bool terminal = !json && ::isatty(2) && !(term && std::string(term) == "dumb");
  auto live = std::make_shared<LiveProgress>(terminal, json);
  return [live](const Progress& p) { live->show(p); };
}

Secret read_api_key(const std::string& file) {
  const std::string text = read_file(file, 1u << 16, ErrorKind::kConfig);
  const auto printable = [](char c) { return c > ' ' && c < 127; };
  const auto begin = std::find_if(text.begin(), text.end(), printable),
             end = std::find_if_not(begin, text.end(), printable);
  if (begin == end) throw Error(ErrorKind::kConfig, file + ": no key, expected one on the first line");
  return Secret(std::string(begin, end));
}

Secret endpoint_key(const std::string& file, const std::string& url) {
  if (!file.empty()) return read_api_key(file);
  const char* key = std::getenv("OPENAI_API_KEY");
  if (!key) return {};
  if (net::keeps_secrets(url)) return key;
  log(LogLevel::kWarn, SecretUrl(url).shown() + " is not https: the key of OPENAI_API_KEY is not sent to it");
  return {};
}

SecretUrl secret_url(const Global& global, const std::string& argument, SecretUrl::Shows shows) {
  if (argument.starts_with('@')) return SecretUrl(read_api_key(argument.substr(1)).reveal(), shows);
  SecretUrl url(argument, shows);
  const auto holds = [&](const std::string& given) { return given.find(argument) != std::string::npos; };
  if (url.has_secret() && std::any_of(global.arguments.begin(), global.arguments.end(), holds))
    log(LogLevel::kWarn,
        url.shown() +
            ": every user of this machine can read the arguments of a command: put the URL into a file and give @FILE");
  return url;
}

}  // namespace specdec::cli
