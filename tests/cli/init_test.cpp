#include "cli/init/init.h"

#include <gtest/gtest.h>

#include "tests/base/scratch.h"

namespace specdec::cli {
namespace {

using namespace specdec::testing;

std::string unit_of(const InitProgram& program, const std::string& name) {
  InitOptions options;
  options.directory = "/srv/draft";
  options.only = {"systemd"};
  for (const InitFile& file : init_files(options, program))
    if (file.path.filename() == name) return file.text;
  return "";
}

// systemd starts a service with its own PATH and without the variables of the user's shell.
TEST(Init, UnitsHaveWhatTheProgramNeedsFromItsEnvironment) {
  for (const char* name : {"specdec.service", "specdec-serve.service"}) {
    const std::string unit = unit_of({"/opt/speculation/bin/specdec", "/home/a b/100%/$x/torch/lib"}, name);
    EXPECT_NE(unit.find("\nExecStart=/opt/speculation/bin/specdec --config specdec.toml "), std::string::npos) << unit;
    EXPECT_NE(unit.find("\nEnvironment=\"PATH=/opt/speculation/bin:/usr/local/sbin:"), std::string::npos)
        << "on-drift names specdec without its directory: " << unit;
    EXPECT_NE(unit.find("\nEnvironment=\"SPECDEC_TORCH_LIB=/home/a b/100%%/$x/torch/lib\"\n"), std::string::npos)
        << unit;
    const std::string plain = unit_of({"/opt/specdec/bin/specdec"}, name);
    EXPECT_EQ(plain.find("SPECDEC_TORCH_LIB"), std::string::npos) << plain;
    EXPECT_EQ(plain.find('@'), plain.find("@%n")) << plain;
  }
}

TEST(Init, LaunchersOfThePythonEnvironmentAreFound) {
  const Scratch scratch;
  put(scratch / "venv/bin/torchrun", "");
  const std::string venv = (scratch / "venv").string();
  const std::string unit =
      unit_of({"/opt/bin/specdec", venv + "/lib/python3.11/site-packages/torch/lib"}, "specdec.service");
  EXPECT_NE(unit.find("PATH=/opt/bin:" + venv + "/bin:"), std::string::npos) << unit;
}

}  // namespace
}  // namespace specdec::cli
