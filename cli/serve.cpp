#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "base/error.h"
#include "base/shell.h"
#include "cli/command.h"
#include "deploy/serve/options.h"

namespace specdec::cli {

namespace {

void add_network_flags(CLI::App& app, deploy::ServeOptions& options) {
  app.add_option("--host", options.host, "Address to bind; any but loopback needs --api-key-file or SPECDEC_API_KEY")
      ->type_name("ADDRESS")
      ->capture_default_str()
      ->group("Network");
  app.add_option("--port", options.port, "Port to bind; 0 chooses a free one and prints it")
      ->check(within(0, 65535))
      ->capture_default_str()
      ->group("Network");
  app.add_option(
         "--api-key-file", options.api_key_file,
         "File with one key per line, optionally followed by a name; with it every route but /health, /ready "
         "and /ping needs a key. SIGHUP makes the server read it again. Without it, SPECDEC_API_KEY is the one key")
      ->type_name("FILE")
      ->group("Network");
  app.add_option(
         "--tls-cert", options.tls_cert,
         "PEM file with the certificate and those that lead to its root: the server speaks HTTPS, by TLS 1.2 or "
         "newer. SIGHUP makes the server read it again")
      ->type_name("FILE")
      ->group("Network");
  app.add_option("--tls-key", options.tls_key, "PEM file with the certificate's private key, not encrypted")
      ->type_name("FILE")
      ->group("Network");
  app.add_option("--allowed-host", options.allowed_hosts,
                 "Without keys: a host name by which clients may call this server, besides localhost, 127.0.0.1 and "
                 "[::1]; may be repeated")
      ->type_name("NAME")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group("Network");
  app.add_option(
         "--allow-origin", options.allowed_origins,
         "ORIGIN[,ORIGIN...]: web pages of these origins, such as https://app.example, may call the server from "
         "a browser (CORS); may be repeated")
      ->type_name("ORIGIN")
      ->expected(1)
      ->delimiter(',')
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group("Network");
  app.add_option("--admin-socket", options.admin_socket,
                 "Unix socket (mode 0600) that accepts POST /admin/drain and /admin/draft (docs/serve.md)")
      ->type_name("PATH")
      ->group("Network");
  app.add_option("--served-model-name", options.model_names,
                 "NAME[,NAME...] in /v1/models and in requests; replies carry the first; default: the target's "
                 "directory name")
      ->type_name("NAME,...")
      ->expected(1)
      ->delimiter(',')
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group("Network");
}

void add_capacity_flags(CLI::App& app, deploy::ServeOptions& options) {
  app.add_option("--max-batch", options.max_batch, "Number of answers generated at the same time")
      ->capture_default_str()
      ->group("Capacity");
  app.add_option("--queue-limit", options.queue_limit, "Number of requests that may wait; further ones get status 429")
      ->capture_default_str()
      ->group("Capacity");
  app.add_option("--tenant-queue", options.tenant_queue,
                 "How many of these may have the same API key's name; 0 = half if there are several names, else all")
      ->capture_default_str()
      ->group("Capacity");
  app.add_option("--max-context", options.max_context,
                 "Longest prompt and answer together, in tokens; 0 = the target's context")
      ->capture_default_str()
      ->group("Capacity");
  app.add_option(
         "--cache", options.cache_mib,
         "MiB for the KV caches of both models, reusable prompts included, in each process of --tensor-parallel; "
         "0 = --max-batch answers of --max-context tokens")
      ->capture_default_str()
      ->group("Capacity");
  app.add_option("--drain-seconds", options.drain_seconds, "Time that accepted requests have to finish after SIGTERM")
      ->check(at_least(0))
      ->capture_default_str()
      ->group("Capacity");
}

void add_record_flags(CLI::App& app, deploy::ServeOptions& options) {
  app.add_option("--record", options.record_dir,
                 "Write traffic records here, with prompts and answers as they are (data ingest redacts them), and "
                 "acceptance records in its\n"
                 "subdirectory acceptance")
      ->type_name("DIR")
      ->group("Records");
  app.add_option("--record-rejects", options.record_rejects,
                 "For this share of the conversations (0 to 1) also record the tokens that the target refused, in the "
                 "subdirectory rejects: token ids, no text")
      ->needs("--record")
      ->capture_default_str()
      ->group("Records");
  app.add_option("--record-quota", options.record_quota_mib,
                 "MiB that all of --record may take; beyond this, records are dropped and counted; 0 = no limit")
      ->needs("--record")
      ->capture_default_str()
      ->group("Records");
  app.add_option("--acceptance-log", options.acceptance_log,
                 "Append acceptance records (figures, no text) to this file")
      ->type_name("FILE")
      ->group("Records");
}

void add_chat_flags(CLI::App& app, deploy::ServeOptions& options) {
  app.add_option("--tool-call-parser", options.tool_call_parser,
                 "How the model writes function calls: hermes, llama3_json, mistral, qwen3_coder, none, or auto, which "
                 "recognises it "
                 "from the chat template")
      ->check(CLI::IsMember({"auto", "hermes", "llama3_json", "mistral", "qwen3_coder", "none"}))
      ->capture_default_str()
      ->group("Chat");
  app.add_flag("!--no-reasoning-split", options.split_reasoning,
               "Leave the thoughts of a model that thinks in the content, instead of returning them as "
               "reasoning_content")
      ->group("Chat");
}

}  // namespace

void add_serve(Cli& cli) {
  auto options = std::make_shared<deploy::ServeOptions>();
  CLI::App* sub = cli.app.add_subcommand("serve", "OpenAI-compatible server with lossless speculative decoding");
  CLI::Option* package =
      sub->add_option("package", options->package, "Package: directory, STORE:CHANNEL or sha256-... in a store")
          ->type_name("PACKAGE|STORE:CHANNEL");
  CLI::Option* target =
      sub->add_option("--target", options->target, "MODEL that answers, if no package is given")->type_name("MODEL");
  sub->add_option("--draft", options->draft, "MODEL that drafts; without it the target answers alone")
      ->type_name("MODEL")
      ->excludes(package)
      ->needs(target);
  target->excludes(package);
  add_network_flags(*sub, *options);
  add_capacity_flags(*sub, *options);
  add_chat_flags(*sub, *options);
  add_record_flags(*sub, *options);
  sub->add_flag("--allow-stale", options->allow_stale, "Serve with a draft that was made for another target");
  sub->add_option("--tensor-parallel", options->tensor_parallel,
                  "Number of processes that hold the target together, one GPU each; the draft stays with the first")
      ->check(within(1, 64))
      ->capture_default_str()
      ->group("Device");
  add_speculation_flags(*sub, options->speculation);
  add_shape_flags(*sub, options->speculation);
  add_device_flags(*sub, options->device);
  add_draft_dtype_flag(*sub, options->device);
  add_exact_flag(*sub, options->device);
  sub->footer(
      "Examples:\n"
      "  specdec serve store:production --record traffic --acceptance-log acceptance.jsonl\n"
      "  specdec serve --target T --draft run/draft --k 5 --port 0\n"
      "  specdec serve store:production --host 0.0.0.0 --api-key-file keys.txt --admin-socket /run/specdec.sock\n"
      "  specdec serve store:production --host 0.0.0.0 --api-key-file keys.txt --tls-cert cert.pem --tls-key key.pem\n"
      "  curl --unix-socket /run/specdec.sock -X POST http://admin/admin/drain\n"
      "A package brings its validated K schedule: the first K for each batch size, until costs are measured, with the "
      "largest as --max-k,\n"
      "and its verification rule. --k, --max-k and --verify override these.\n"
      "Routes: /v1/models, /v1/chat/completions, /v1/completions, /tokenize, /detokenize, /health, /ready, /ping, "
      "/version, /openapi.json, /metrics, /gate, /dashboard\n"
      "Exit codes: 0 drained, 2 options or address, 5 stale draft, 7 model or package, 8 memory or device, 74 address "
      "in use, 75 another server records to the same directory, or a process of --tensor-parallel was lost.");
  sub->callback([&cli, options, sub] {
    if (sub->count("package") == 0 && sub->count("--target") == 0)
      throw Error(ErrorKind::kUsage, "serve: give a PACKAGE or --target MODEL (see specdec serve --help)");
    const std::filesystem::path given(options->package);
    if (std::error_code ec; !given.empty() && std::filesystem::exists(given / "config.json", ec))
      throw Error(ErrorKind::kUsage, "serve: " + options->package +
                                         " is a model directory, not a package: use --target " +
                                         shell_words({options->package}));
    options->max_k_given = sub->count("--max-k") > 0;
    options->verify_given = sub->count("--verify") > 0;
    if (const char* key = std::getenv("SPECDEC_API_KEY"); key && options->api_key_file.empty()) options->api_key = key;
    select_engine(cli, cli.runners.serve, options);
  });
}

}  // namespace specdec::cli
