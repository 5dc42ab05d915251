// The files that `specdec init` writes, as text of the program. cmake/embed.cmake makes it from cli/init/assets/.
#pragma once

namespace specdec::cli {

extern const char kLoopToml[], kSpecdecToml[], kGithubYaml[], kGitlabYaml[], kServiceUnit[], kTimerUnit[],
    kCronJobYaml[], kRulesYaml[], kDashboardJson[];

}  // namespace specdec::cli
