#include "engine/parallel/rank_watch.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>

#include "base/json.h"
#include "base/progress.h"

namespace specdec::parallel {

namespace {

constexpr const char* kLeft = "left";  // heartbeat value of a rank that has left
// The time in seconds that a rank may take to save its state after it learned that another rank is lost.
constexpr double kSavingSeconds = 600;

std::string beat_key(int rank) { return "beat/" + std::to_string(rank); }

std::chrono::duration<double> for_seconds(double seconds) { return std::chrono::duration<double>(seconds); }

std::string end_note(int rank, const Error& error) {
  const Json note = {{"rank", rank}, {"kind", static_cast<int>(error.kind())}, {"message", error.what()}};
  return note.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Error error_of_note(const std::string& note) {
  const Json json = Json::parse(note, nullptr, /*allow_exceptions=*/false);
  const Json kind = json.is_object() ? json.value("kind", Json()) : Json(),
             message = json.is_object() ? json.value("message", Json()) : Json();
  const int number = kind.is_number_integer() ? kind.get<int>() : -1;
  if (number < 0 || number > static_cast<int>(ErrorKind::kInternal) || !message.is_string())
    return Error(ErrorKind::kNetwork, "another rank ended");
  return Error(static_cast<ErrorKind>(number), message.get<std::string>());
}

}  // namespace

void Beats::observe(int rank, int64_t beat, double now) {
  Beat& last = last_[static_cast<size_t>(rank)];
  if (beat != last.count) last = {beat, now};
}

std::optional<int> Beats::late(double now, double limit) const {
  for (size_t r = 0; r < last_.size(); ++r)
    if (now - last_[r].since > limit) return static_cast<int>(r);
  return std::nullopt;
}

// The threads share this state, so that they may outlive the RankWatch: a thread that hangs in a call of the ranks'
// shared store (board) must not keep the process from ending.
struct RankWatch::State {
  State(WatchOptions given, Board notes, const Clock& time)
      : options(std::move(given)),
        board(std::move(notes)),
        clock(time),
        names(options.names),
        beats(options.ranks, time.seconds()) {
    names.resize(static_cast<size_t>(options.ranks));
  }

  const WatchOptions options;
  const Board board;
  const Clock& clock;

  // Held during each call of the ranks' shared store (board). A call can hang if rank 0's machine is gone.
  std::mutex board_lock;
  int64_t count = 0;
  bool told_stop = false, has_left = false;

  std::mutex lock;  // protects the members below
  std::condition_variable changed;
  std::vector<std::string> names;
  Beats beats;
  std::optional<Error> verdict;
  double verdict_at = 0;
  bool closing = false, hurry = false, noticed = false;
  int threads = 2;

  std::string name(int rank) const {  // the caller holds `lock`
    const std::string& known = names[static_cast<size_t>(rank)];
    return known.empty() ? "rank " + std::to_string(rank) : known;
  }
  std::vector<bool> joined() {
    const std::lock_guard guard(lock);
    std::vector<bool> out;
    for (const std::string& known : names) out.push_back(!known.empty());
    return out;
  }

  void decide(const Error& error) {  // the caller holds `lock`
    if (verdict) return;
    verdict = error;
    verdict_at = clock.seconds();
    changed.notify_all();
  }

  // Writes this rank's heartbeat to the ranks' shared store (board) and reads heartbeats of other ranks. Rank 0 reads
  // all heartbeats. The other ranks read only rank 0's; rank 0 tells them which other ranks are lost.
  void exchange() {
    const std::lock_guard one(board_lock);
    if (!has_left) board.put(beat_key(options.rank), std::to_string(++count));
    if (stop_requested()) {
      if (!told_stop) board.put("stop", "1");
      told_stop = true;
    } else if (board.look("stop")) {
      told_stop = true;
      request_stop();
    }
    const auto end = board.look("end");
    const std::vector<bool> here = joined();
    std::vector<std::pair<int, int64_t>> seen;
    for (int r = 0; r < options.ranks; ++r) {
      // A rank is lost if its value does not change for too long. −count changes at every call, so a rank with this
      // value is never lost. It is used for the ranks that are not watched: this rank itself, ranks that have not
      // joined or have left, and, if this is not rank 0, all ranks but rank 0.
      int64_t beat = -count;
      if (r != options.rank && here[static_cast<size_t>(r)] && (r == 0 || options.rank == 0)) {
        const std::string note = board.look(beat_key(r)).value_or("0");
        if (note != kLeft) std::from_chars(note.data(), note.data() + note.size(), beat);
      }
      seen.emplace_back(r, beat);
    }
    const std::lock_guard guard(lock);
    for (const auto& [r, beat] : seen) beats.observe(r, beat, clock.seconds());
    if (end) decide(error_of_note(*end));
  }

  void exchange_until_closed() {
    std::unique_lock guard(lock);
    while (!closing) {
      guard.unlock();
      bool works = true;
      try {
        exchange();
      } catch (const std::exception&) {
        // The shared store, which rank 0 keeps, is gone. Rank 0's heartbeat then no longer changes, so rank 0 will
        // count as lost.
        works = false;
      }
      guard.lock();
      hurry = hurry || !works;
      changed.wait_for(guard, for_seconds(options.beat_seconds), [&] { return closing; });
    }
    --threads;
    changed.notify_all();
  }

  // Decides which rank is lost, given rank `late`, whose heartbeat is too old. If `late` is this rank itself, its
  // heartbeats did not reach the ranks' shared store. Rank 0 keeps the store, so in this case rank 0 is lost.
  void decide_lost(int late) {
    const std::string who =
        options.rank == 0 && late == 0 ? "the launcher's store" : name(late == options.rank ? 0 : late);
    decide(Error(ErrorKind::kNetwork,
                 who + " is gone or cannot be reached, so " + name(options.rank) + " ends: " + options.next));
  }

  void judge_until_closed() {
    std::unique_lock guard(lock);
    while (!closing) {
      const double now = clock.seconds();
      const double limit = hurry ? options.hurry_seconds : options.lost_seconds;
      if (const auto late = verdict ? std::nullopt : beats.late(now, limit)) {
        decide_lost(*late);
        const Error error = *verdict;
        guard.unlock();
        if (*late != 0) post(error, *late);
        guard.lock();
      }
      if (verdict && now - verdict_at > (noticed ? kSavingSeconds : options.grace_seconds) && options.on_lost) {
        const Error error = *verdict;
        guard.unlock();
        options.on_lost(error);
        guard.lock();
        break;
      }
      changed.wait_for(guard, for_seconds(options.beat_seconds / 2), [&] { return closing; });
    }
    --threads;
    changed.notify_all();
  }

  // Calls f(), which uses the ranks' shared store (board), while no other thread uses it. Returns false if the store
  // hangs or f() throws.
  template <class F>
  bool with_board(const F& f) {
    // Tries for two seconds, because another thread holds the lock forever if the shared store hangs. A
    // std::timed_mutex would do this in one call, but the thread sanitizer does not know the function that it calls.
    std::unique_lock one(board_lock, std::try_to_lock);
    for (int i = 0; !one.owns_lock(); ++i) {
      if (i == 400) return false;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      static_cast<void>(one.try_lock());
    }
    try {
      f();
      return true;
    } catch (const std::exception&) {
      return false;
    }
  }

  void post(const Error& error, int rank) {
    with_board([&] {
      if (!board.look("end")) board.put("end", end_note(rank, error));
    });
  }
};

RankWatch::RankWatch(WatchOptions options, Board board, const Clock& clock)
    : state_(std::make_shared<State>(std::move(options), std::move(board), clock)) {
  std::thread([state = state_] { state->exchange_until_closed(); }).detach();
  std::thread([state = state_] { state->judge_until_closed(); }).detach();
}

RankWatch::~RankWatch() {
  std::unique_lock guard(state_->lock);
  state_->closing = true;
  state_->changed.notify_all();
  state_->changed.wait_for(guard, for_seconds(2), [&] { return state_->threads == 0; });
}

void RankWatch::meet(int rank, const std::string& name) {
  const std::lock_guard guard(state_->lock);
  state_->names[static_cast<size_t>(rank)] = name;
}

Error RankWatch::reason(const std::string& what) {
  std::unique_lock guard(state_->lock);
  state_->hurry = state_->noticed = true;
  state_->changed.notify_all();
  state_->changed.wait_for(guard, for_seconds(state_->options.grace_seconds),
                           [&] { return state_->verdict.has_value(); });
  if (state_->verdict) return *state_->verdict;
  return Error(ErrorKind::kNetwork,
               "another rank is gone or cannot be reached (" + what.substr(0, 200) + "): " + state_->options.next);
}

void RankWatch::fail(const Error& error) {
  std::string who;
  {
    const std::lock_guard guard(state_->lock);
    state_->noticed = true;
    if (state_->verdict) return;  // another rank's error already ends all ranks
    who = state_->name(state_->options.rank);
  }
  state_->post(Error(error.kind(), who + ": " + error.what()), state_->options.rank);
}

void RankWatch::leave() {
  state_->with_board([&] {
    state_->has_left = true;
    state_->board.put(beat_key(state_->options.rank), kLeft);
  });
}

bool RankWatch::others_left() {
  bool all = true;
  const bool answers = state_->with_board([&] {
    for (int r = 0; r < state_->options.ranks; ++r)
      all = all && (r == state_->options.rank || state_->board.look(beat_key(r)) == kLeft);
  });
  return all || !answers;
}

}  // namespace specdec::parallel
