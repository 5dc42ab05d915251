#include "monitor/trigger.h"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/error.h"

namespace specdec::monitor {

namespace {

int run_shell(const std::string& command, const std::vector<std::pair<std::string, std::string>>& variables) {
  std::vector<std::string> environment;
  for (char** e = ::environ; *e; ++e) environment.emplace_back(*e);
  for (const auto& [key, value] : variables) environment.push_back(key + "=" + value);
  std::vector<char*> envp;
  for (std::string& e : environment) envp.push_back(e.data());
  envp.push_back(nullptr);
  const pid_t pid = ::fork();
  if (pid < 0) throw Error(ErrorKind::kInternal, std::string("--on-drift: cannot start a process: ") + std::strerror(errno));
  if (pid == 0) {
    ::dup2(2, 1);  // our stdout is the result's
    ::signal(SIGPIPE, SIG_DFL);
    ::execle("/bin/sh", "sh", "-c", command.c_str(), static_cast<char*>(nullptr), envp.data());
    ::_exit(127);
  }
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace

Json run_trigger(State& state, const CheckOptions& options, const Alarm& alarm, const CheckResult& result, const Clock& clock) {
  const std::string key = "trigger " + alarm.key;
  if (state.value(key) == "0") return {{"ran", false}, {"before", true}};
  state.set_value(key, "started");
  const int code = run_shell(options.on_drift, {{"SPECDEC_ALARM_VERDICT", result.verdict},
                                                {"SPECDEC_ALARM_REASON", result.reason},
                                                {"SPECDEC_ALARM_PACKAGE", options.package},
                                                {"SPECDEC_ALARM_TARGET", options.target},
                                                {"SPECDEC_ALARM_SEGMENT", alarm.segment},
                                                {"SPECDEC_ALARM_REPORT", std::filesystem::absolute(alarm.report).string()}});
  state.begin();
  state.set_value(key, std::to_string(code));
  state.append({0, clock.unix_seconds(), "trigger", result.json["inputs"]["package"].get<std::string>(),
                {{"command", options.on_drift}, {"exit_code", code}, {"verdict", result.verdict}, {"reason", "--on-drift: exit " + std::to_string(code)}}});
  state.commit();
  return {{"ran", true}, {"exit_code", code}};
}

}  // namespace specdec::monitor
