#include "cli/output.h"

#include <cstdio>
#include <iostream>

#include "base/error.h"

namespace specdec::cli {

void write_output(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  require_output_written();
}

void require_output_written() {
  // std::cout is flushed too, because CLI11 prints help through it.
  if (!std::cout.flush() || std::fflush(stdout) != 0 || std::ferror(stdout))
    throw Error(ErrorKind::kIo, "standard output: write failed: the result is lost or cut off");
}

}  // namespace specdec::cli
