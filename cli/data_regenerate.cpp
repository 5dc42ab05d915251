// Implements `specdec data regenerate`.
#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <memory>
#include <thread>

#include "base/clock.h"
#include "base/file.h"
#include "base/model_directory.h"
#include "base/secret.h"
#include "cli/child_process.h"
#include "cli/data_commands.h"
#include "data/regenerate/openai_client.h"
#include "data/regenerate/regenerate.h"
#include "data/shards/shard_reader.h"
#include "data/shards/shard_writer.h"
#include "data/stats.h"

namespace specdec::cli {

namespace {

constexpr double kServerStartSeconds = 60, kModelLoadSeconds = 1800;

// Waits until the server has loaded its model. The port is open before that, but completions would be refused. Throws
// Error(kNetwork) if the server ends or needs more than 30 minutes.
void wait_until_ready(BackgroundChild& server, const std::string& url) {
  data::ClientOptions options;
  options.url = url;
  data::OpenAiClient client(options);
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(kModelLoadSeconds);
  while (client.probe("/ready").status != 200) {
    if (!server.running())
      throw Error(ErrorKind::kNetwork,
                  "the server ended while it loaded the model (exit code " + std::to_string(server.stop()) + ")");
    if (std::chrono::steady_clock::now() > end)
      throw Error(ErrorKind::kNetwork, "the server did not load the model in 30 minutes");
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

struct RegenerateFlags {
  data::RegenerateOptions options;
  std::string target, target_files, api_key_file;
  DeviceOptions device;
};

int run_regenerate(const Global& global, RegenerateFlags flags) {
  const SystemClock clock;
  const std::string started = format_utc(clock.unix_seconds());
  const double start = clock.seconds();
  data::RegenerateOptions& options = flags.options;
  data::require_replaceable(options.out);  // checked before a target is downloaded
  options.seed = flags.device.seed;
  if (!flags.api_key_file.empty() || names_endpoint(flags.target))
    options.api_key = endpoint_key(flags.api_key_file, flags.target);
  const ProgressFn progress = make_progress(global);
  std::unique_ptr<BackgroundChild> server;
  const fs::path server_log = fs::path(data::progress_file(options.out).string() + ".serve.log");
  if (names_endpoint(flags.target)) {
    options.url = flags.target;
    if (!flags.target_files.empty()) options.target = resolve_model(flags.target_files).directory.string();
  } else {
    options.target = resolve_model(flags.target).directory.string();
    options.url = "http://127.0.0.1";
    data::validate(options);  // reports wrong options before a server is started; so does the next line
    const data::ShardReader readable(options.data);
    const std::string width = std::to_string(options.concurrency);
    make_directories(server_log.parent_path());
    if (progress) progress({"starting a server for the target", 0, 0, "", options.target});
    server = std::make_unique<BackgroundChild>(
        global.program,
        std::vector<std::string>{"--log-format", "text", "serve", "--target", options.target, "--port", "0", "--device",
                                 flags.device.device, "--dtype", flags.device.dtype, "--threads",
                                 std::to_string(flags.device.threads), "--max-batch", width},
        server_log);
    options.url = server->wait_for_line("listening on ", kServerStartSeconds);
    wait_until_ready(*server, options.url);
  }
  const data::RegenerateResult done = data::regenerate(options, progress);
  if (server) {
    server->stop();
    fs::remove(server_log);
  }
  if (global.json) {
    ShardsResult result;
    result.inputs = {{options.data, done.index.sources.front().sha256, ""}, {flags.target, "", done.index.target_id}};
    result.out = options.out, result.index = done.index, result.splits = split_sizes(done.index);
    result.answers = {done.model, done.asked, done.reused, done.turns, done.ended};
    print_result(result, started, clock.seconds() - start);
    return 0;
  }
  std::printf("answers  %8lld rows new, %lld kept from an earlier run, %lld answers by %s\n",
              static_cast<long long>(done.asked), static_cast<long long>(done.reused),
              static_cast<long long>(done.turns), done.model.c_str());
  if (!done.ended.empty())
    std::printf("ended early: %s (see %s)\n", data::counts_text(done.ended).c_str(),
                (fs::path(options.out) / "rejects.jsonl").c_str());
  if (!done.index.rejects.empty())
    std::printf("rejected %s (see %s)\n", data::counts_text(done.index.rejects).c_str(),
                (fs::path(options.out) / "rejects.jsonl").c_str());
  print_splits(done.index, options.out);
  return 0;
}

}  // namespace

void add_regenerate(Cli& cli, CLI::App& data) {
  auto f = std::make_shared<RegenerateFlags>();
  data::RegenerateOptions& o = f->options;
  CLI::App* sub = data.add_subcommand(
      "regenerate", "Has the current target rewrite the answers turn by turn, through an OpenAI-compatible endpoint");
  sub->add_option("dir", o.data, "Output of data ingest")->type_name("DIR")->required();
  sub->add_option("--target", f->target,
                  "MODEL (served by a child process on a free port) or URL http(s)://host[:port][/v1]")
      ->type_name("MODEL|URL")
      ->required();
  sub->add_option("--out", o.out, "Directory to write")->type_name("DIR")->required();
  sub->add_option(
         "--target-files", f->target_files,
         "With a URL: local directory of the same model; its fingerprint is recorded and its tokenizer is used, which "
         "recognises calls of functions")
      ->type_name("DIR");
  sub->add_option("--model", o.model, "Name of the model at the endpoint (else the first of /v1/models)")
      ->type_name("NAME");
  sub->add_option("--api-key-file", f->api_key_file, "With a URL: file with the key (else OPENAI_API_KEY)")
      ->type_name("FILE");
  sub->add_option("--temperature", o.temperature, "Temperature for every row (else the row's own, else 1)");
  sub->add_option(
         "--max-tokens", o.max_tokens,
         "Longest answer; 0 = as many tokens as the recorded one has (twice as many and 64 where the conversation "
         "goes on)")
      ->capture_default_str();
  sub->add_option("--concurrency", o.concurrency, "Requests at a time")->capture_default_str();
  sub->add_option("--request-timeout", o.request_timeout_s, "Seconds for one answer")->capture_default_str();
  sub->add_flag("--prompt-as-text", o.prompt_as_text,
                "Send prompts as text, for endpoints that do not accept token ids");
  sub->add_flag("--resume", o.resume,
                "Keep the answers of an interrupted run, or of a finished one with the same data and options");
  add_device_flags(*sub, f->device);
  sub->footer(
      "Examples:\n"
      "  specdec data regenerate traffic --target stories260K --out traffic-new\n"
      "  specdec data regenerate traffic --target http://10.0.0.5:8000/v1 --target-files models/llama --out "
      "traffic-new --concurrency 32\n"
      "  specdec data regenerate traffic --target stories260K --out traffic-new --resume\n"
      "Exit codes: 0 done (rows without an answer and those that end early are in OUT/rejects.jsonl), 2 key or model "
      "or "
      "the first 8 rows refused, 7 another tokenizer or no answer, 75 endpoint down or a signal: --resume continues.");
  sub->callback([&cli, f] {
    cli.check = [f] {
      data::RegenerateOptions options = f->options;
      options.url = names_endpoint(f->target) ? f->target : "http://127.0.0.1";
      data::validate(options);
    };
    cli.selected = [&cli, f] { return run_regenerate(cli.global, *f); };
  });
}

}  // namespace specdec::cli
