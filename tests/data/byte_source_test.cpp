#include "data/sources/byte_source.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <thread>

#include "base/sha256.h"
#include "data/sources/record_reader.h"
#include "data/sources/sources.h"
#include "tests/data/toy.h"

namespace specdec::data {
namespace {

std::string zstd(const std::string& text) {
  std::string out(ZSTD_compressBound(text.size()), '\0');
  ZSTD_CCtx* context = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(context, ZSTD_c_checksumFlag, 1);  // the zstd program sets this, too
  out.resize(ZSTD_compress2(context, out.data(), out.size(), text.data(), text.size()));
  ZSTD_freeCCtx(context);
  return out;
}

std::string read_to_end(const std::string& source, size_t step) {
  const auto bytes = open_bytes(source);
  std::string all, block(step, '\0');
  for (size_t n; (n = bytes->read(block)) > 0;) all.append(block, 0, n);
  EXPECT_EQ(bytes->finish_sha256(), sha256_file(source));
  EXPECT_EQ(bytes->stored_done(), bytes->stored_size());
  return all;
}

std::string big_text() {
  std::string text;
  for (int i = 0; text.size() < 3'000'000; ++i) text += "{\"text\":\"row " + std::to_string(i * 7919) + "\"}\n";
  return text;
}

TEST(ByteSource, PlainGzipAndZstdGiveTheSameBytes) {
  const Scratch s;
  const std::string text = big_text();
  const std::string half = text.substr(0, 1'000'001), rest = text.substr(1'000'001);
  for (const size_t step : {size_t{1} << 20, size_t{4099}}) {
    EXPECT_EQ(read_to_end(s.write("plain", text), step), text);
    EXPECT_EQ(read_to_end(s.write("a.gz", gzip(text)), step), text);
    EXPECT_EQ(read_to_end(s.write("misnamed.txt", zstd(text)), step), text);
    // Rotated logs may be concatenated with cat, so one file may hold several gzip members or zstd frames.
    EXPECT_EQ(read_to_end(s.write("members.gz", gzip(half) + gzip("") + gzip(rest)), step), text);
    EXPECT_EQ(read_to_end(s.write("frames.zst", zstd(half) + zstd(rest)), step), text);
  }
  // pzstd writes a skippable frame before each zstd frame. Tapes and disk images pad files with zeros.
  const std::string skipped = std::string("\x50\x2A\x4D\x18\x04\x00\x00\x00", 8) + "1234";
  EXPECT_EQ(read_to_end(s.write("pzstd.zst", skipped + zstd(half) + skipped + zstd(rest)), 4099), text);
  for (const size_t step : {size_t{1} << 20, size_t{64}})
    for (const size_t zeros : {size_t{1}, size_t{512}, size_t{600'000}})
      EXPECT_EQ(read_to_end(
                    s.write("padded.gz", gzip(half) + std::string(zeros, '\0') + gzip(rest) + std::string(zeros, '\0')),
                    step),
                text);
  for (const std::string& empty : {std::string(), gzip(""), zstd(""), skipped})
    EXPECT_EQ(read_to_end(s.write("e", empty), 64), "");
}

TEST(ByteSource, DamagedAndCutDataAreErrorsThatNameTheFile) {
  const Scratch s;
  const std::string text = big_text();
  for (const auto& [kind, packed] : {std::pair<std::string, std::string>{"gzip", gzip(text)}, {"zstd", zstd(text)}}) {
    std::string flipped = packed;
    for (size_t i = flipped.size() / 2; i < flipped.size() / 2 + 8; ++i) flipped[i] = static_cast<char>(~flipped[i]);
    for (const std::string& bad : {packed.substr(0, packed.size() - 3), packed.substr(0, packed.size() / 3),
                                   packed.substr(0, 5), flipped, packed + "rest"}) {
      const fs::path file = s.write("bad", bad);
      try {
        read_to_end(file, 1 << 20);
        ADD_FAILURE() << kind << " of " << bad.size() << " bytes was accepted";
      } catch (const Error& e) {
        EXPECT_EQ(e.kind(), ErrorKind::kData);
        EXPECT_NE(std::string(e.what()).find("/bad: damaged " + kind), std::string::npos) << e.what();
      }
    }
  }
}

// Runs f in a child process whose standard input is this text, delivered in pieces.
int with_standard_input(const std::string& text, const std::function<bool()>& f) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[0], STDIN_FILENO);
    close(ends[0]);
    close(ends[1]);
    _exit(f() ? 0 : 1);
  }
  close(ends[0]);
  for (size_t i = 0; i < text.size(); i += 1000) {
    const std::string piece = text.substr(i, 1000);
    EXPECT_EQ(write(ends[1], piece.data(), piece.size()), static_cast<ssize_t>(piece.size()));
  }
  close(ends[1]);
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST(ByteSource, StandardInputInAnyWrapping) {
  const std::string rows = "{\"text\":\"one\"}\n{\"text\":\"two\"}\n";
  for (const std::string& bytes : {rows, gzip(rows), zstd(rows)}) {
    EXPECT_EQ(with_standard_input(bytes,
                                  [&] {
                                    RecordReader reader(kStandardInput, {});
                                    RawRecord record;
                                    std::string seen;
                                    while (reader.next(record)) seen += std::string(record.text) + "\n";
                                    return seen == rows && reader.container() == Container::kLines &&
                                           reader.finish_sha256() == sha256_hex(bytes) && reader.stored_size() == 0;
                                  }),
              0);
  }
}

TEST(Sources, DirectoriesPatternsAndFiles) {
  const Scratch s;
  for (const char* name :
       {"b.jsonl.gz", "a.jsonl", "c.json.zst", "d.txt", "e.csv", "f.gz", "g.jsonl.partial", "odd[1].jsonl"})
    s.write(name, "x");
  fs::create_directories(s / "sub.jsonl");
  const auto names = [&](const std::string& source) {
    std::string all;
    for (const std::string& f : expand_sources({source})) all += fs::path(f).filename().string() + " ";
    return all;
  };
  EXPECT_EQ(names(s.path()), "a.jsonl b.jsonl.gz c.json.zst d.txt e.csv odd[1].jsonl ");
  EXPECT_EQ(names((s / "*.jsonl*").string()), "a.jsonl b.jsonl.gz g.jsonl.partial odd[1].jsonl ");
  EXPECT_EQ(names((s / "odd[1].jsonl").string()), "odd[1].jsonl ");  // no pattern, because a file has this name
  EXPECT_EQ(names((s / "absent").string()), "absent ");              // no error here: the reader reports a missing file
  EXPECT_EQ(names("-"), "- ");
  EXPECT_THROW(names((s / "*.parquet").string()), Error);
  EXPECT_THROW(names((s / "sub.jsonl").string()), Error);
  EXPECT_THROW(expand_sources({"-", "-"}), Error);
}

TEST(Sources, CompressedFilesAreIngestedAsTheyAre) {
  const Scratch s;
  fs::create_directories(s / "logs");
  const std::string array = "[{\"text\":\"three\"},{\"text\":\"four\"}]";
  s.write("logs/a.jsonl.gz", gzip("{\"text\":\"one\"}\n{\"text\":\"two\"}\n"));
  s.write("logs/b.json.zst", zstd(array));
  s.write("logs/c.txt.gz", gzip("five<|endoftext|>six"));
  IngestOptions o = ingest_options(s / "logs", make_toy_target(s / "target"), s / "out");
  const IngestResult done = ingest(o, {});
  EXPECT_EQ(done.report.accepted, 4);  // plain text beside logs is read only with --format plain
  EXPECT_EQ(done.index.sources[1].sha256, sha256_hex(zstd(array)));
  const text::Tokenizer tokenizer(o.target);
  const auto seen = [&] {
    std::string all;
    for (const TokenRow& row : ShardReader(o.out).rows("all")) all += learnt_text(tokenizer, row) + " ";
    return all;
  };
  EXPECT_EQ(seen(), "one two three four ");
  o.sources = {(s / "logs/c.txt.gz").string()};
  ingest(o, {});
  EXPECT_EQ(seen(), "five six ");
}

}  // namespace
}  // namespace specdec::data
