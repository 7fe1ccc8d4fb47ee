/* All Gs from go() to death, in lists that threads hardly meet in. Whoever goes through one holds its lock; a G leaves
 * before its memory goes. */
#ifndef GMPLOOP_ALLGS_H
#define GMPLOOP_ALLGS_H

#include "schedtypes.h"

static inline void gl_all_add(gl_sched *S, gl_g *gp, int list) {
    gp->list = (unsigned)list & 15;
    gl_lock(&S->all[list].lock);
    gp->all_prev = NULL;
    gp->all_next = S->all[list].first;
    if (gp->all_next) gp->all_next->all_prev = gp;
    S->all[list].first = gp;
    S->all[list].n++;
    gl_unlock(&S->all[list].lock);
}

static inline void gl_all_remove(gl_sched *S, gl_g *gp) {
    gl_lock(&S->all[gp->list].lock);
    if (gp->all_prev) gp->all_prev->all_next = gp->all_next;
    else S->all[gp->list].first = gp->all_next;
    if (gp->all_next) gp->all_next->all_prev = gp->all_prev;
    S->all[gp->list].n--;
    gl_unlock(&S->all[gp->list].lock);
}

#endif
