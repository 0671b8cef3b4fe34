// SPDX-License-Identifier: Apache-2.0
// Proves: the store opens again after any kill or power cut, whatever the disk refuses. It returns
// only bytes of the version that it names, nothing older than the last acknowledged write, and
// keeps to its size. A power cut may lose any subset of the unsynced writes and tear sectors, and a
// sync may have lied. past.h describes the model. A failing seed is shortened and printed step by
// step.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include "life.h"
#include "past.h"
#include "seeds.h"
#include "store/disk/store_dir.h"
#include "test.h"

#ifdef FOREBAY_ASAN
#define SEEDS 240u
#else
#define SEEDS 2400u
#endif
#define LIFE_S 300u          // real: a circle ends
#define REWRITING_SEEDS 200u // one of this number of seeds has survivors that are rewritten
#define ROOM_BYTES (1ull << 30)
#define BEGAN_US 1000000000000u
#define BEGAN_WALL_US 1800000000000000u

static char root[256], cache[300];

// A boot of its own whenever all power was cut.
void __wrap_store_boot_id(char ret_boot_id[STORE_BOOT_ID_MAX + 1]);
void __wrap_store_boot_id(char ret_boot_id[STORE_BOOT_ID_MAX + 1])
{
    (void)snprintf(ret_boot_id, STORE_BOOT_ID_MAX + 1, "boot-%u", past->boot);
}

// In memory, unless that file system is one of the small ones that containers have.
static const char *folder_for_all(void)
{
    struct statvfs st;
    bool is_ample = statvfs("/dev/shm", &st) == 0 && access("/dev/shm", W_OK) == 0 &&
                    (uint64_t)st.f_bavail * st.f_frsize >= ROOM_BYTES;
    return is_ample ? "/dev/shm" : "/tmp";
}

static void make_root(void)
{
    const char *tmp = folder_for_all();
    (void)snprintf(root, sizeof(root), "%s/forebay-simulation-XXXXXX", tmp);
    cr_assert(mkdtemp(root) != NULL);
    (void)snprintf(cache, sizeof(cache), "%s/cache", root);
    if (past == NULL) {
        past = mmap(NULL, sizeof(*past), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        cr_assert(past != MAP_FAILED);
    }
}

// False: it failed, and past->failure says how.
static bool life_went_well(int status)
{
    if (WIFEXITED(status)) {
        int code = WEXITSTATUS(status);
        if (code == 0 || code == LIFE_STRUCK || code == LIFE_REFUSED ||
            (code == LIFE_INDEX_BAD && !past->plan.is_honest)) {
            return true;
        }
        if (code == LIFE_FAILED) {
            return false;
        }
    }
    (void)snprintf(past->failure, sizeof(past->failure), "life %u: the process ended with %s %d",
                   past->life, WIFSIGNALED(status) ? "signal" : "status",
                   WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    return false;
}

// As the message says: the directory is removed, and with it all saved state.
static void start_anew(void)
{
    disk_remove_all(cache);
    cr_assert(mkdir(cache, 0700) == 0);
    for (unsigned i = 0; i < KEYS; i++) {
        struct key_past *k = &past->keys[i];
        *k = (struct key_past){.number = k->number, .acked_number = k->acked_number};
    }
    past->generation = past->epoch = past->put_count = 0;
    past->has_index = false;
    past->tally[TALLY_REMOVED]++;
}

static bool plan_goes_well(const struct plan *plan, bool is_loud)
{
    unsigned long tally[TALLY_COUNT_];
    memcpy(tally, past->tally, sizeof(tally));
    *past = (struct past){
        .plan = *plan, .is_loud = is_loud, .monotonic_us = BEGAN_US, .wall_us = BEGAN_WALL_US};
    memcpy(past->tally, tally, sizeof(tally));
    cr_assert(mkdir(cache, 0700) == 0);
    bool is_well = true;
    for (past->life = 0; past->life < plan->life_count && is_well; past->life++) {
        fflush(NULL);
        pid_t pid = fork();
        cr_assert(pid >= 0);
        if (pid == 0) {
            (void)alarm(LIFE_S);
            store_life(cache);
        }
        int status;
        cr_assert(waitpid(pid, &status, 0) == pid);
        is_well = life_went_well(status);
        if (is_well && WIFEXITED(status) && WEXITSTATUS(status) == LIFE_REFUSED) {
            start_anew();
        }
        past->boot += !plan->lives[past->life].is_same_boot;
        past->wall_us += 5000000;
        past->monotonic_us += 5000000;
    }
    disk_remove_all(cache);
    return is_well;
}

// Leaves out whatever the seed fails without.
static void make_short(struct plan *plan)
{
    for (unsigned l = 0; l < plan->life_count; l++) {
        struct life *life = &plan->lives[l];
        for (unsigned s = life->step_count; s-- > 0;) {
            life->steps[s].is_left_out = true;
            if (plan_goes_well(plan, false)) {
                life->steps[s].is_left_out = false;
            }
        }
    }
}

static bool seed_goes_well(uint64_t seed, bool is_one)
{
    struct plan plan;
    plan_make(seed, &plan);
    if (plan_goes_well(&plan, is_one)) {
        return true;
    }
    fprintf(stderr, "seed %llu: %s\n", (unsigned long long)seed, past->failure);
    make_short(&plan);
    plan_tell(&plan);
    (void)plan_goes_well(&plan, true);
    fprintf(stderr, "%s\n", past->failure);
    return false;
}

static void tell_tally(uint64_t seeds)
{
    static const char *const names[TALLY_COUNT_] = {
        "reads",         "served",        "unconfirmed",    "damaged",   "stored",
        "refused",       "acknowledged",  "deletes failed", "condemned", "epochs",
        "kills",         "cuts",          "at start",       "lies",      "removed",
        "KiB rewritten", "KiB given back"};
    fprintf(stderr, "simulation: %llu seeds", (unsigned long long)seeds);
    for (unsigned i = 0; i < TALLY_COUNT_; i++) {
        fprintf(stderr, ", %s %lu", names[i], past->tally[i]);
    }
    fputc('\n', stderr);
}

static void go_through(uint64_t first, uint64_t last, bool is_loud)
{
    make_root();
    bool is_well = true;
    for (uint64_t seed = first; seed <= last && is_well; seed++) {
        is_well = seed_goes_well(seed, is_loud);
    }
    tell_tally(last + 1 - first);
    bool has_rewritten = past->tally[TALLY_REWRITTEN] > 0 || last - first < REWRITING_SEEDS;
    bool has_given = past->tally[TALLY_GIVEN] > 0 || last - first < REWRITING_SEEDS;
    disk_remove_all(root);
    cr_assert(is_well, "a seed failed: see above");
    cr_assert(has_rewritten, "no seed had survivors rewritten");
    cr_assert(has_given, "no seed gave room of a segment back");
}

// In quarters, so that more than one processor works on it. A single seed belongs to the first one.
static void go_through_quarter(unsigned quarter)
{
    struct seeds seeds = seeds_wanted(SEEDS);
    uint64_t each = (seeds.last + 1 - seeds.first + 3) / 4;
    uint64_t first = seeds.first + quarter * each;
    uint64_t last = min_u64(seeds.last, first + each - 1);
    if (first <= last) {
        go_through(first, last, seeds.is_one);
    }
}

Test(simulation, the_store_survives_the_disk_first_quarter)
{
    go_through_quarter(0);
}

Test(simulation, the_store_survives_the_disk_second_quarter)
{
    go_through_quarter(1);
}

Test(simulation, the_store_survives_the_disk_third_quarter)
{
    go_through_quarter(2);
}

Test(simulation, the_store_survives_the_disk_last_quarter)
{
    go_through_quarter(3);
}

// Always, however many others: they once found something.
Test(simulation, seeds_that_have_failed)
{
    static const uint64_t known[] = {
        18,     // a version whose one run is damaged, asked for behind fill
        903,    // the same in the first life
        1773,   // a reader that began before its bucket's epoch went on
        2071,   // other boot, nothing of the version can be described
        114186, // the first run of a version cannot be stored, the second is there
    };
    for (unsigned i = 0; i < ARRAY_LEN(known) && !seeds_wanted(1).is_one; i++) {
        go_through(known[i], known[i], false);
    }
}
