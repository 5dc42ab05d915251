#include "cli/program.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "base/reload_request.h"
#include "base/shell.h"
#include "base/version.h"
#include "cli/error_report.h"
#include "cli/log.h"
#include "cli/mistakes.h"
#include "cli/settings.h"
#include "cli/stop_deadline.h"

namespace specdec::cli {

namespace {

void on_signal(int number) {
  stop_by_signal(number, std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count());
}

void unblock(std::initializer_list<int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : signals) sigaddset(&set, number);
  sigprocmask(SIG_UNBLOCK, &set, nullptr);
}

// Installs the signal handlers. Unblocks SIGINT and SIGTERM, which exec_engine() blocks before it replaces specdec by
// specdec-engine.
void take_signals() {
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGINT, on_signal);
  std::signal(SIGTERM, on_signal);
  unblock({SIGINT, SIGTERM});
}

// Makes SIGHUP reload the files of a server; any other command is ended by SIGHUP. Unblocks SIGHUP, which exec_engine()
// blocks.
void take_hangups(bool serves) {
  if (serves) std::signal(SIGHUP, [](int) { request_reload(); });
  unblock({SIGHUP});
}

const char kSummary[] =
    "specdec keeps the draft model of a speculative-decoding deployment healthy, from traffic to drift alarm.";

const char kFooter[] =
    "Examples:\n"
    "  specdec demo                                              # the whole story on the embedded model\n"
    "  specdec data ingest logs/*.jsonl --target T --out traffic\n"
    "  specdec distill --target T --data traffic --draft prune:2 --out run\n"
    "  specdec validate --target T --draft run/draft --data traffic --out gate\n"
    "  specdec package --target T --draft run/draft --report gate/report.json --store store\n"
    "  specdec serve store:production\n"
    "  specdec monitor check --package store:production --source http://127.0.0.1:8000/metrics --state monitor.db\n"
    "Exit codes: 0 ok, 2 usage, 3 verdict no, 4 inconclusive, 5 stale draft, 6 not worth it, 7 bad input, 8 device, 74 "
    "i/o, 75 try again.";

std::string own_path() {
  std::error_code ec;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", ec);
  return ec ? std::string("specdec") : path.string();
}

void declare_globals(CLI::App& app, Global& global) {
  app.add_option("--config", global.config_file, "TOML file with settings; SPECDEC_* variables and flags override it")
      ->type_name("FILE");
  app.add_flag("--json", global.json, "One JSON object on stdout");
  app.add_flag_function(
      "-v,--verbose", [&global](int64_t n) { global.verbosity += static_cast<int>(n); }, "More log lines");
  app.add_flag_function(
      "-q,--quiet", [&global](int64_t n) { global.verbosity -= static_cast<int>(n); }, "No progress, errors only");
  app.add_option("--log-format", global.log_format, "text | json")->check(CLI::IsMember({"text", "json"}));
  app.set_version_flag("-V,--version", std::string("specdec ") + kToolVersion);
  app.footer(kFooter);
  app.require_subcommand(1);
  app.fallthrough();
  app.failure_message(CLI::FailureMessage::simple);
}

// Returns the command that the arguments name, for example "data regenerate". Works even if the command line cannot be
// parsed.
std::string command_of(const CLI::App& app, const std::vector<std::string>& arguments) {
  std::string name;
  const CLI::App* level = &app;
  for (const std::string& word : arguments)
    for (const CLI::App* sub : level->get_subcommands({}))
      if (!word.empty() && sub->check_name(word)) {
        name += (name.empty() ? "" : " ") + sub->get_name();
        level = sub;
        break;
      }
  return name;
}

// Returns the command that a parsed command line has chosen, for example "data regenerate".
std::string chosen_command(const CLI::App& app) {
  std::string name;
  for (const CLI::App* level = &app; !level->get_subcommands().empty();) {
    level = level->get_subcommands().front();
    name += (name.empty() ? "" : " ") + level->get_name();
  }
  return name;
}

// Returns how a stopped process of this command is resumed: "the same command" or "the same command with --resume", or
// "" if the work cannot be resumed.
std::string what_goes_on(const std::string& command) {
  static const std::set<std::string> kSame = {"package push", "package pull",  "fetch",
                                              "loop run",     "monitor check", "monitor watch"},
                                     kWithFlag = {"distill", "data regenerate", "data label"};
  return kSame.contains(command)       ? "the same command"
         : kWithFlag.contains(command) ? "the same command with --resume"
                                       : "";
}

// Runs `work`. If an error names a flag whose value came from a variable or a settings file, replaces the flag in the
// message by the name of the variable or setting.
void with_origins(const Cli& cli, const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& e) {
    const std::string message = named_by_origin(e.what(), cli.origins, cli.global.arguments);
    if (message == e.what()) throw;
    throw Error(e.kind(), message);
  }
}

// Warns about environment variables that look like settings but are not. Not done in specdec-engine, because `specdec`
// has already warned about the same environment.
void warn_of_variables(const Cli& cli, const std::string& command) {
  if (cli.runners.serve) return;
  std::vector<std::string> environment;
  for (char** variable = ::environ; *variable; ++variable) environment.emplace_back(*variable);
  for (const std::string& warning : unknown_variables(cli.app, command, environment)) log(LogLevel::kWarn, warning);
}

// Parses the command line. Sets `command` to the name of the command as soon as it is known.
void parse_command(Cli& cli, int argc, char** argv, std::string& command) {
  declare_commands(cli);
  command = command_of(cli.app, cli.global.arguments);
  refuse_mistakes(cli.app, cli.global.arguments);
  cli.origins = apply_settings(cli.app, argc, argv);
  with_origins(cli, [&] {
    try {
      cli.app.parse(argc, argv);
    } catch (const CLI::Success&) {
      throw;
    } catch (const CLI::ParseError& e) {
      throw Error(ErrorKind::kUsage,
                  conversion_message(e.what()) + " (see specdec " + (command.empty() ? "" : command + " ") + "--help)");
    }
    refuse_empty_names(cli.app);
  });
  command = chosen_command(cli.app);
}

// Parses the command line and runs its command.
int run_command(Cli& cli, int argc, char** argv, std::string& command) {
  Global& global = cli.global;
  parse_command(cli, argc, argv, command);
  if (const std::string goes_on = what_goes_on(command); !goes_on.empty()) set_stop_resumes(goes_on);
  take_hangups(command == "serve");
  install_log(global);
  prepare_stop_report(global, command);
  install_hub(global);
  warn_of_variables(cli, command);
  int code = 2;
  with_origins(cli, [&] {
    if (cli.check) cli.check();
    if (cli.selected) code = cli.selected();
  });
  return code;
}

}  // namespace

void declare_commands(Cli& cli) {
  declare_globals(cli.app, cli.global);
  add_generate(cli);
  add_data(cli);
  add_distill(cli);
  add_validate(cli);
  add_bench(cli);
  add_package(cli);
  add_export(cli);
  add_serve(cli);
  add_monitor(cli);
  add_loop(cli);
  add_init(cli);
  add_demo(cli);
  add_fetch(cli);
  add_doctor(cli);
  add_help(cli);
  add_completion(cli);
  add_manual(cli);
}

void check_command_line(const std::vector<std::string>& arguments) {
  CLI::App app{kSummary, "specdec"};
  Global global;
  global.program = own_path();
  global.arguments = arguments;
  const EngineRunners runners;
  Cli cli{app, global, runners, {}, {}, {}};
  std::vector<std::string> words = arguments;
  words.insert(words.begin(), "specdec");
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  std::string command;
  try {
    parse_command(cli, static_cast<int>(words.size()), argv.data(), command);
  } catch (const CLI::Success&) {
    throw Error(ErrorKind::kUsage, "--help and --version end the command before it begins");
  }
  with_origins(cli, [&] {
    if (cli.check) cli.check();
  });
}

int run_program(int argc, char** argv, const EngineRunners& runners) {
  take_signals();
  CLI::App app{kSummary, "specdec"};
  Global global;
  global.program = own_path();
  for (int i = 1; i < argc; ++i) global.arguments.emplace_back(argv[i]);
  read_report_format(global);
  Cli cli{app, global, runners, {}, {}, {}};
  std::string command;
  const auto work = [&] {
    try {
      return run_command(cli, argc, argv, command);
    } catch (const CLI::Success& done) {  // --help or --version was given
      return app.exit(done);
    }
  };
  return run_reported(work, global, command);
}

}  // namespace specdec::cli
