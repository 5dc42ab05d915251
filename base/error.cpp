#include "base/error.h"

namespace specdec {

int exit_code(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kUsage:
    case ErrorKind::kConfig:
      return 2;
    case ErrorKind::kData:
    case ErrorKind::kModel:
      return 7;
    case ErrorKind::kIo:
      return 74;
    case ErrorKind::kNetwork:
      return 75;
    case ErrorKind::kDevice:
      return 8;
    case ErrorKind::kInternal:
      return 1;
  }
  return 1;
}

}  // namespace specdec
