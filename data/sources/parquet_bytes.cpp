#include "data/sources/parquet_bytes.h"

#include <sys/time.h>

#include <algorithm>
#include <optional>

#include "base/confined_child.h"
#include "base/error.h"
#include "text/parquet_rows.h"

namespace specdec::data {

namespace {

constexpr ChildLimits kLimits{.memory_bytes = uint64_t{1} << 30};
constexpr int kSecondsToNextRows = 60;

// Header that the child process writes before each piece of its output. The piece holds rows or an error message; after
// a header of kind kEnd it is empty.
struct Head {
  enum Kind : uint32_t { kRows, kError, kEnd } kind;
  uint32_t size;
  uint64_t stored_done;
};

void send(int pipe, Head::Kind kind, std::string_view piece, uint64_t stored_done) {
  const Head head{kind, static_cast<uint32_t>(piece.size()), stored_done};
  write_pipe(pipe, {reinterpret_cast<const char*>(&head), sizeof head});
  write_pipe(pipe, piece);
  // Restarts the child's time limit for the next rows. The limit counts CPU time, because wall-clock time also passes
  // while the parent is slow to read.
  const itimerval left{{0, 0}, {kSecondsToNextRows, 0}};
  setitimer(ITIMER_PROF, &left, nullptr);
}

void send_rows(const std::string& file, int pipe) {
  try {
    send(pipe, Head::kRows, "", 0);
    text::parquet_rows(file, [&](std::string_view lines, uint64_t stored_done) {
      for (constexpr size_t kPiece = size_t{1} << 30; !lines.empty();
           lines.remove_prefix(std::min(kPiece, lines.size())))
        send(pipe, Head::kRows, lines.substr(0, kPiece), stored_done);
    });
    send(pipe, Head::kEnd, "", 0);
  } catch (const Error& e) {
    send(pipe, Head::kError, e.what(), 0);
  }
}

class ParquetBytes final : public ByteSource {
 public:
  ParquetBytes(std::string file, std::unique_ptr<ByteSource> stored)
      : file_(std::move(file)), stored_(std::move(stored)) {}

  size_t read(std::span<char> out) override {
    if (!child_) child_.emplace(kLimits, [this](int pipe) { send_rows(file_, pipe); });
    while (left_ == 0) {
      if (ended_ || !next_piece()) return 0;
    }
    const size_t n = std::min<size_t>(out.size(), left_);
    take(out.first(n));
    left_ -= static_cast<uint32_t>(n);
    return n;
  }
  bool is_table() const override { return true; }
  uint64_t stored_done() const override { return done_; }
  uint64_t stored_size() const override { return stored_->stored_size(); }
  std::string finish_sha256() override {
    done_ = stored_size();
    return stored_->finish_sha256();
  }

 private:
  bool next_piece() {
    Head head{};
    take({reinterpret_cast<char*>(&head), sizeof head});
    ended_ = head.kind == Head::kEnd;
    if (head.kind == Head::kError) {
      std::string why(head.size, '\0');
      take(why);
      throw Error(ErrorKind::kData,
                  file_ + ": damaged or unsupported Parquet: " + why + ": copy the file again, or export it as JSONL");
    }
    left_ = head.size;
    done_ = head.stored_done;
    return !ended_;
  }
  void take(std::span<char> out) {
    if (child_->read(out) == out.size()) return;
    throw Error(ErrorKind::kData, file_ + ": the Parquet reader was stopped" + child_->death() +
                                      " (limits: " + std::to_string(kLimits.memory_bytes >> 20) +
                                      " MiB for the pages of a batch of rows, " + std::to_string(kSecondsToNextRows) +
                                      " s of CPU for the next rows): the file is damaged, or was written with pages "
                                      "too large: write it with smaller ones");
  }

  std::string file_;
  std::unique_ptr<ByteSource> stored_;
  std::optional<ConfinedChild> child_;
  uint32_t left_ = 0;  // bytes left of the current piece
  uint64_t done_ = 0;
  bool ended_ = false;
};

}  // namespace

std::unique_ptr<ByteSource> parquet_bytes(const std::string& file, std::unique_ptr<ByteSource> stored) {
  return std::make_unique<ParquetBytes>(file, std::move(stored));
}

}  // namespace specdec::data
